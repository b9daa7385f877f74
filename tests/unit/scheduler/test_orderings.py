"""Who comes first, by each ordering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations, permutations
from random import Random

import numpy as np
import pytest

from scheduler_service.core.case import case_of
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Ordering, Policy, PrefillSharing
from scheduler_service.core.rank import log2_interpolated, ordinal, rank_requests, tenant_counters
from scheduler_service.core.state import ExecutorLimits, ExecutorState, Tenant, Tenants
from support.arithmetic_executor import ITERATION_US, ArithmeticExecutor
from support.states import (
    EVEN_TENANTS,
    LATENCY,
    NOW_US,
    Row,
    executor_of,
    preempted,
    requests_of,
    running,
    swapped,
    waiting,
)

ONE_PLACE = ExecutorLimits(max_num_batched_tokens=256, max_num_seqs=1, block_size=16, num_blocks=64, max_model_len=256)
SECOND = 1_000_000


FAIR = Policy(ordering=Ordering.FAIR)


def first_of(*rows: Row, policy: Policy, **settings: object) -> int:
    """Who of these enters when there is one place."""
    plan = plan_executor(executor_of(*rows, max_num_seqs=1, num_swap_blocks=8, **settings), policy)
    (entering,) = [*plan.admit.id.tolist(), *plan.resume.id.tolist()]
    return entering


def test_the_logarithm_is_exact_at_powers_of_two_and_rises_between() -> None:
    logarithms = [log2_interpolated(value) for value in range(1, 5000)]
    assert (np.diff(logarithms) > 0).all()
    assert [log2_interpolated(2**exponent) for exponent in range(40)] == list(range(40))
    assert [log2_interpolated(2 * value) for value in range(1, 5000)] == [one + 1 for one in logarithms]


def test_an_ordinal_keeps_the_order_of_floats() -> None:
    floats = [-math.inf, -1e308, -2.5, -5e-324, 0.0, 5e-324, 1.0, math.nextafter(1.0, 2.0), 1e308, math.inf]
    ordinals = [ordinal(value) for value in floats]
    assert ordinals == sorted(set(ordinals))
    assert ordinal(-0.0) == ordinal(0.0)


def test_the_shortest_job_comes_first_by_prompt_and_expected_answer() -> None:
    rows = [
        waiting(1, num_prompt_tokens=20, expected_output_tokens=30, max_output_tokens=90),
        waiting(2, num_prompt_tokens=30, expected_output_tokens=10, max_output_tokens=90),
    ]
    assert first_of(*rows, policy=Policy(ordering=Ordering.SHORTEST_JOB_FIRST)) == 2


@pytest.mark.parametrize(("waited_seconds", "first"), [(19, 2), (21, 1)])
def test_waiting_one_aging_step_halves_a_job(waited_seconds: int, first: int) -> None:
    rows = [
        waiting(1, num_prompt_tokens=61, max_output_tokens=4, arrival_time_us=0),
        waiting(2, num_prompt_tokens=13, max_output_tokens=4, arrival_time_us=waited_seconds * SECOND),
    ]
    assert first_of(*rows, policy=Policy(ordering=Ordering.SHORTEST_JOB_FIRST, aging_seconds=10)) == first


def test_the_shortest_prefill_comes_first_whatever_the_answer() -> None:
    policy = Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST)
    short = waiting(2, num_prompt_tokens=19, expected_output_tokens=90, max_output_tokens=90)
    assert first_of(waiting(1, num_prompt_tokens=20, max_output_tokens=1), short, policy=policy) == 2
    cached = waiting(1, num_prompt_tokens=40, num_computed_tokens=32, num_blocks=2, max_output_tokens=1)
    assert first_of(cached, short, policy=policy) == 1


@pytest.mark.parametrize(("waited_seconds", "first"), [(19, 2), (21, 1)])
def test_waiting_one_aging_step_halves_a_prompt(waited_seconds: int, first: int) -> None:
    rows = [
        waiting(1, num_prompt_tokens=64, arrival_time_us=0),
        waiting(2, num_prompt_tokens=16, arrival_time_us=waited_seconds * SECOND),
    ]
    assert first_of(*rows, policy=Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST, aging_seconds=10)) == first


@pytest.mark.parametrize(("waited_seconds", "first"), [(29, 2), (31, 1)])
def test_waiting_one_aging_step_is_worth_one_level_of_priority(waited_seconds: int, first: int) -> None:
    rows = [
        waiting(1, arrival_time_us=0),
        waiting(2, priority=3, arrival_time_us=waited_seconds * SECOND),
    ]
    assert first_of(*rows, policy=Policy(ordering=Ordering.PRIORITY, aging_seconds=10)) == first


def test_a_very_long_aging_step_makes_priority_strict() -> None:
    rows = [waiting(1, arrival_time_us=0), waiting(2, priority=1, arrival_time_us=2**62)]
    assert first_of(*rows, policy=Policy(ordering=Ordering.PRIORITY, aging_seconds=1e300)) == 2


def test_the_farthest_figures_keep_their_order() -> None:
    extremes = (-(2**63), -1, 2**63 - 1)
    rows = [waiting(1 + i, arrival_time_us=arrival, priority=2**31 - 1) for i, arrival in enumerate(extremes)]
    rows += [waiting(4 + i, arrival_time_us=arrival, priority=-(2**31)) for i, arrival in enumerate(extremes)]
    for ordering in (Ordering.PRIORITY, Ordering.SHORTEST_JOB_FIRST, Ordering.SHORTEST_PREFILL_FIRST):
        case = case_of(executor_of(*rows), Policy(ordering=ordering, aging_seconds=1e-9))
        rank_requests(case)
        rank = case.rank.tolist()
        assert rank[0] < rank[1] < rank[2]
        assert rank[3] < rank[4] < rank[5]


def test_the_earliest_deadline_comes_first_and_none_comes_last() -> None:
    rows = [waiting(1), waiting(2, deadline_us=NOW_US + 9), waiting(3, deadline_us=NOW_US + 8)]
    policy = Policy(ordering=Ordering.EARLIEST_DEADLINE_FIRST)
    assert first_of(*rows, policy=policy) == 3
    assert first_of(*rows[:2], policy=policy) == 2


@pytest.mark.parametrize("ordering", [Ordering.PRIORITY, Ordering.EARLIEST_DEADLINE_FIRST, Ordering.FAIR])
def test_of_equal_rank_those_that_ran_before_come_first(ordering: Ordering) -> None:
    rows = [waiting(1, num_prompt_tokens=17), preempted(2)]
    assert first_of(*rows, policy=Policy(ordering=ordering)) == 2
    assert first_of(rows[0], swapped(3), policy=Policy(ordering=ordering)) == 3


def test_who_ran_before_does_not_pass_who_ranks_higher() -> None:
    assert first_of(waiting(1, priority=1), swapped(2), policy=Policy(ordering=Ordering.PRIORITY)) == 1


def test_fair_takes_the_tenant_with_the_least_weighted_service() -> None:
    rows = [waiting(1, tenant=0), waiting(2, tenant=1)]
    fair = Policy(ordering=Ordering.FAIR)
    served = (Tenant(name="a", service=100), Tenant(name="b", weight=4, service=300))
    assert first_of(*rows, policy=fair, tenants=Tenants.of(*served)) == 2
    assert first_of(*rows, policy=fair, tenants=Tenants.of(served[0], replace(served[1], weight=2))) == 1


def test_fair_takes_those_of_one_tenant_by_the_ordering_within() -> None:
    tenants = Tenants.of(Tenant(name="a", service=100), Tenant(name="b"))
    rows = [
        waiting(1, num_prompt_tokens=3, tenant=0),
        waiting(2, num_prompt_tokens=30, tenant=1),
        waiting(3, num_prompt_tokens=20, tenant=1),
    ]
    assert first_of(*rows, policy=FAIR, tenants=tenants) == 2
    shortest = replace(FAIR, ordering_within_tenant=Ordering.SHORTEST_PREFILL_FIRST)
    assert first_of(*rows, policy=shortest, tenants=tenants) == 3
    urgent = replace(FAIR, ordering_within_tenant=Ordering.EARLIEST_DEADLINE_FIRST)
    assert first_of(rows[0], rows[2], {**rows[1], "deadline_us": 9}, policy=urgent, tenants=tenants) == 2


def test_an_idle_tenant_counts_as_just_less_than_the_least_that_is_active() -> None:
    tenants = Tenants.of(
        Tenant(name="a", service=90), Tenant(name="b", service=70, weight=2), Tenant(name="c", service=1)
    )
    state = executor_of(running(1, tenant=0), running(2, tenant=1), waiting(3, tenant=2), tenants=tenants)
    assert tenant_counters(case_of(state, FAIR)).tolist() == [90, 35, np.nextafter(35, 0)]
    alone = executor_of(waiting(3, tenant=2), tenants=tenants)
    assert tenant_counters(case_of(alone, FAIR)).tolist() == [90, 35, 1]


def test_case_9_a_background_request_waits_no_longer_than_its_aging() -> None:
    aging_iterations = 50
    policy = Policy(ordering=Ordering.PRIORITY, aging_seconds=aging_iterations * ITERATION_US / 1e6)
    executor = ArithmeticExecutor(limits=ONE_PLACE, policy=policy)
    executor.submit(1, prompt=16, new=2)
    for iteration in range(200):
        if iteration % 2 == 0:
            executor.submit(100 + iteration, prompt=16, new=2, priority=1)
        executor.step()
    started = executor.tokens_of(1).index(16)
    assert aging_iterations - 2 <= started <= aging_iterations + 4
    executor.run()
    waits = [executor.tokens_of(100 + i).index(16) - i for i in range(0, 200, 2)]
    # An urgent one waits for the background request, or for one that waited for it.
    assert max(waits) <= 2


def test_case_9_strict_priority_lets_it_wait() -> None:
    executor = ArithmeticExecutor(limits=ONE_PLACE, policy=Policy(ordering=Ordering.PRIORITY, aging_seconds=1e6))
    executor.submit(1, prompt=16, new=2)
    for iteration in range(200):
        if iteration % 2 == 0:
            executor.submit(100 + iteration, prompt=16, new=2, priority=1)
        executor.step()
    assert 1 in executor.requests


FEWEST_LATE = Policy(ordering=Ordering.FEWEST_LATE, aging_seconds=0.5, target_time_to_first_token_us=2000)


def in_time(state: ExecutorState, policy: Policy) -> set[int]:
    """Ids of those that wait whose first token can be in time, as the planner has it: their ranks count from 0."""
    case = case_of(state, policy)
    rank_requests(case)
    ranks = {int(id): int(rank) for id, rank in zip(state.requests.id, case.rank, strict=True) if 0 <= rank < 2**61}
    assert sorted(ranks.values()) == list(range(len(ranks)))
    return set(ranks)


def most_in_time(state: ExecutorState, token_us: float, policy: Policy) -> int:
    """How many can be at most, by trying all choices: nobody is later for being done by arrival."""
    rows = sorted(zip(state.requests.arrival_time_us.tolist(), state.requests.num_prompt_tokens.tolist(), strict=True))

    def are_in_time(chosen: tuple[tuple[int, int], ...]) -> bool:
        ends = accumulate(num_tokens * token_us for _, num_tokens in chosen)
        late_at = [arrival + policy.target_time_to_first_token_us - state.now_us for arrival, _ in chosen]
        return all(end <= most for end, most in zip(ends, late_at, strict=True))

    return max(n for n in range(len(rows) + 1) if any(are_in_time(chosen) for chosen in combinations(rows, n)))


@pytest.mark.parametrize("seed", range(20))
def test_as_few_first_tokens_are_late_as_can_be(seed: int) -> None:
    random = Random(seed)
    rows = [
        waiting(id, arrival_time_us=NOW_US - random.randrange(2500), num_prompt_tokens=random.randrange(1, 60))
        for id in range(1, 9)
    ]
    # A pass of 64 tokens takes 1,640 us.
    state = executor_of(*rows, max_num_batched_tokens=64, latency=LATENCY)
    chosen = in_time(state, FEWEST_LATE)
    assert len(chosen) == most_in_time(state, 1640 / 64, FEWEST_LATE)


def ranked(state: ExecutorState, policy: Policy) -> list[int]:
    """Ids in the order of their ranks."""
    case = case_of(state, policy)
    rank_requests(case)
    return state.requests.id[np.argsort(case.rank)].tolist()


def test_those_in_time_go_the_shorter_first_as_far_as_the_longer_can_wait() -> None:
    """Half of their target all may wait for others. Of the orders that keep nobody waiting longer none is sooner."""
    policy, num_with_such_an_order = replace(FEWEST_LATE, target_time_to_first_token_us=6000), 0
    for seed in range(30):
        random = Random(seed)
        lengths = {id: random.randrange(1, 30) for id in range(1, 7)}
        waited_us = {id: random.randrange(1500) for id in lengths}
        rows = [waiting(i, arrival_time_us=NOW_US - waited_us[i], num_prompt_tokens=lengths[i]) for i in lengths]
        state = executor_of(*rows, max_num_batched_tokens=64, latency=LATENCY)
        assert in_time(state, policy) == set(lengths)

        def times_us(
            ids: Sequence[int], lengths: dict[int, int] = lengths, waited: dict[int, int] = waited_us
        ) -> list[float]:
            """From the arrival of each until its prompt is done."""
            return [
                waited[i] + end * 1640 / 64 for i, end in zip(ids, accumulate(lengths[i] for i in ids), strict=True)
            ]

        chosen = times_us(ranked(state, policy))
        orders = [times for times in map(times_us, permutations(lengths)) if max(times) <= 3000]
        num_with_such_an_order += len(orders) > 0
        assert max(chosen) <= (3000 if orders else 6000), seed
        if orders:
            assert sum(chosen) == pytest.approx(min(map(sum, orders))), seed
    assert 10 < num_with_such_an_order < 30


IN_ORDER = replace(FEWEST_LATE, prefill_sharing=PrefillSharing.IN_ORDER, target_time_to_first_token_us=6000)


def tokens_beside_one_in_progress(policy: Policy, **of_it: int) -> dict[int, int]:
    """Of 1, which runs and lacks 100 tokens unless said, and 2, which waits and has 10; the budget is 64."""
    columns = {"arrival_time_us": NOW_US - 100, "num_prompt_tokens": 100, "num_output_tokens": 0}
    one = running(1, **columns | {"num_computed_tokens": 0, "num_blocks": 0} | of_it)
    two = waiting(2, arrival_time_us=NOW_US, num_prompt_tokens=10)
    plan = plan_executor(executor_of(one, two, max_num_batched_tokens=64, latency=LATENCY), policy)
    return dict(zip(plan.scheduled.id.tolist(), plan.scheduled.num_tokens.tolist(), strict=True))


def test_a_prompt_in_progress_gives_way_to_a_shorter_one_while_it_can_wait() -> None:
    assert tokens_beside_one_in_progress(replace(IN_ORDER, prefill_sharing=PrefillSharing.FIRST_COME)) == {1: 64}
    assert tokens_beside_one_in_progress(IN_ORDER) == {2: 10, 1: 54}
    # 110 tokens take 2,819 us, and half of the target is 3,000.
    assert tokens_beside_one_in_progress(IN_ORDER, arrival_time_us=NOW_US - 180) == {2: 10, 1: 54}
    assert tokens_beside_one_in_progress(IN_ORDER, arrival_time_us=NOW_US - 190) == {1: 64}
    # One that will be late, or is, does not make others late, too.
    assert tokens_beside_one_in_progress(IN_ORDER, arrival_time_us=NOW_US - 7000) == {1: 64}
    # One that lacks less than the other has is the shorter.
    assert tokens_beside_one_in_progress(IN_ORDER, num_computed_tokens=92, num_blocks=6) == {1: 8, 2: 10}


def test_a_request_whose_answer_has_begun_gives_way_to_nobody() -> None:
    """It computes again what an eviction took, and its reader waits for the next token."""
    assert tokens_beside_one_in_progress(IN_ORDER, num_output_tokens=1) == {1: 64}
    assert tokens_beside_one_in_progress(IN_ORDER, num_preemptions=1) == {1: 64}


@pytest.mark.parametrize(
    ("policy", "most_passes"),
    [
        # What is twelve times as long is even with one that arrives 3.6 steps of the aging later, of five passes each.
        (Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST, aging_seconds=5 * ITERATION_US / 1e6), 18 + 12),
        (Policy(ordering=Ordering.FEWEST_LATE, target_time_to_first_token_us=40 * ITERATION_US), 20 + 12),
        (Policy(ordering=Ordering.SHORTEST_PREFILL_FIRST, aging_seconds=1e6), None),
    ],
    ids=["SHORTEST_PREFILL_FIRST", "FEWEST_LATE", "without aging"],
)
def test_a_prompt_in_progress_pauses_for_as_long_as_the_order_says(policy: Policy, most_passes: int | None) -> None:
    """A prompt of twelve passes has begun when others of one pass come, one a pass."""
    limits = replace(ONE_PLACE, max_num_batched_tokens=16, max_num_seqs=8)
    executor = ArithmeticExecutor(limits=limits, policy=replace(policy, prefill_sharing=PrefillSharing.IN_ORDER))
    executor.submit(1, prompt=12 * 16, new=1)
    executor.step()
    for id in range(100, 200):
        executor.submit(id, prompt=16, new=1)
        executor.step()
    passes = np.flatnonzero(executor.tokens_of(1))
    if most_passes is None:
        assert passes.tolist() == [0]
    else:
        assert passes[1] > 10
        assert 1 in executor.finished
        assert passes[-1] <= most_passes


def test_who_runs_or_decodes_is_counted_before_those_that_wait() -> None:
    newcomer = waiting(2, arrival_time_us=NOW_US, num_prompt_tokens=20)
    prompt = running(1, num_prompt_tokens=60, num_output_tokens=0, num_computed_tokens=0, num_blocks=0)
    assert in_time(executor_of(newcomer, latency=LATENCY, max_num_batched_tokens=64), FEWEST_LATE) == {2}
    assert in_time(executor_of(prompt, newcomer, latency=LATENCY, max_num_batched_tokens=64), FEWEST_LATE) == set()
    # A target of 1.2 ms leaves the prompts 18 tokens beside a decode that takes 1,021 us alone: 67 us a token.
    beside = replace(FEWEST_LATE, target_inter_token_latency_us=1200)
    two = [running(1), waiting(2, arrival_time_us=NOW_US, num_prompt_tokens=40)]
    assert in_time(executor_of(*two, latency=LATENCY, max_num_batched_tokens=64), FEWEST_LATE) == {2}
    assert in_time(executor_of(*two, latency=LATENCY, max_num_batched_tokens=64), beside) == set()


def test_chunks_that_share_a_pass_end_later_by_what_is_computed_beside_them() -> None:
    """Of 60 tokens in chunks of 16 three share a pass of 64 tokens with others, as far as there are any."""
    sides = replace(FEWEST_LATE, chunk_size_tokens=16, target_time_to_first_token_us=2600)
    rows = [waiting(1, arrival_time_us=NOW_US, num_prompt_tokens=60)]
    rows += [waiting(id, arrival_time_us=NOW_US, num_prompt_tokens=10) for id in (2, 3, 4, 5)]
    state = executor_of(*rows, latency=LATENCY, max_num_batched_tokens=64)
    # 100 tokens take 2,563 us one after the other, and the long one ends as late as that where all go on beside it.
    assert in_time(state, sides) == {1, 2, 3, 4, 5}
    shorter = replace(sides, target_time_to_first_token_us=2200)
    assert in_time(state, shorter) == {2, 3, 4, 5}
    # With chunks as large as the pass it would end first, at 1,538 us, and two of the short ones after it.
    alone = executor_of(*rows[:3], latency=LATENCY, max_num_batched_tokens=64)
    assert in_time(alone, replace(shorter, chunk_size_tokens=64)) == {1, 2, 3}
    # Beside two of these it ends with them.
    assert in_time(alone, shorter) == {1, 2, 3}
    assert in_time(alone, replace(shorter, target_time_to_first_token_us=1600)) == {2, 3}


def test_who_ran_before_or_has_waited_for_the_aging_comes_before_those_in_time() -> None:
    newcomer = waiting(1, arrival_time_us=NOW_US, num_prompt_tokens=4)
    waited = waiting(2, arrival_time_us=NOW_US - 500_000, num_prompt_tokens=60)
    almost = waiting(3, arrival_time_us=NOW_US - 499_999, num_prompt_tokens=60)
    back = preempted(4, arrival_time_us=NOW_US - 1000)
    assert first_of(newcomer, waited, back, policy=FEWEST_LATE, latency=LATENCY) == 2
    assert first_of(newcomer, almost, policy=FEWEST_LATE, latency=LATENCY) == 1
    assert first_of(newcomer, almost, back, policy=FEWEST_LATE, latency=LATENCY) == 4


def test_without_a_latency_model_only_who_has_waited_too_long_is_late() -> None:
    rows = [waiting(id, arrival_time_us=NOW_US - 1000 * id, num_prompt_tokens=60) for id in (1, 2, 3)]
    assert in_time(executor_of(*rows, latency=None), FEWEST_LATE) == {1, 2}


def test_case_10_tenants_differ_by_one_largest_request() -> None:
    executor = ArithmeticExecutor(limits=ONE_PLACE, policy=Policy(ordering=Ordering.FAIR), weights=(1.0, 1.0))
    for i in range(20):
        executor.submit(1 + i, prompt=128, new=16, tenant=0)
        executor.submit(101 + i, prompt=8, new=8, tenant=1)
    while any(id > 100 for id in executor.requests):
        plan = executor.step()
        assert len(plan.scheduled.id) == 1
        assert abs(executor.services[0] - executor.services[1]) <= 144
    # 20 times 15 tokens of the one tenant, and so at most three requests of the other, were served by then.
    assert len([id for id in executor.finished if id <= 20]) <= 4
    assert executor.tokens_of(5) == [0] * len(executor.history)


def test_fair_by_residency_tenants_differ_by_one_largest_request() -> None:
    policy = Policy(ordering=Ordering.FAIR, kv_residency_charge=2.0)
    executor = ArithmeticExecutor(limits=ONE_PLACE, policy=policy, weights=(1.0, 1.0))
    for i in range(20):
        executor.submit(1 + i, prompt=128, new=16, tenant=0)
        executor.submit(101 + i, prompt=8, new=8, tenant=1)
    # The long one holds 8 blocks for a pass and 9 for 15, the short one 1 for 8.
    largest, smallest = 143 + 2 * (8 + 15 * 9), 15 + 2 * 8
    while any(id > 100 for id in executor.requests):
        executor.step()
        assert abs(executor.services[0] - executor.services[1]) <= largest
    assert executor.services[1] == 20 * smallest
    assert len([id for id in executor.finished if id <= 20]) <= 20 * smallest // largest + 1


def test_a_turn_under_fair_counts_the_blocks_that_a_request_will_hold_alone() -> None:
    # 47 tokens in 15 passes and 3 blocks, against 46 tokens in 31 passes and 2 blocks in the mean.
    rows = [waiting(id, tenant=0, num_prompt_tokens=33, max_output_tokens=15) for id in (1, 2, 3)]
    others = [waiting(id, tenant=1, num_prompt_tokens=16, max_output_tokens=31) for id in (11, 12, 13)]
    state = executor_of(*rows, *others, max_num_seqs=3, tenants=EVEN_TENANTS, max_num_batched_tokens=512)
    by_tokens, by_blocks = Policy(ordering=Ordering.FAIR), Policy(ordering=Ordering.FAIR, kv_residency_charge=1.0)
    assert sorted(plan_executor(state, by_tokens).admit.id.tolist()) == [1, 11, 12]
    plan = plan_executor(state, by_blocks)
    assert sorted(plan.admit.id.tolist()) == [1, 2, 11]
    assert plan.kv_residency_charge == 1.0
    shared = [{**row, "num_computed_tokens": 15, "num_blocks": 1, "num_shared_blocks": 1} for row in others]
    state = replace(state, requests=requests_of(*rows, *shared))
    assert sorted(plan_executor(state, by_blocks).admit.id.tolist()) == [1, 11, 12]


def test_fair_shares_places_that_come_free_at_once_by_weight() -> None:
    rows = [waiting(id, tenant=0, max_output_tokens=8) for id in range(1, 10)]
    rows += [waiting(id, tenant=1, max_output_tokens=8) for id in range(10, 20)]
    tenants = Tenants.of(Tenant(name="a"), Tenant(name="b", weight=2))
    state = executor_of(*rows, max_num_seqs=6, max_num_batched_tokens=512, tenants=tenants)
    admitted = plan_executor(state, Policy(ordering=Ordering.FAIR)).admit.id.tolist()
    assert sorted(admitted) == [1, 2, 10, 11, 12, 13]


@pytest.mark.parametrize("num_tenants", [3, 40])
def test_fair_takes_as_many_of_a_tenant_as_its_turn_comes_to_with_few_tenants_and_many(num_tenants: int) -> None:
    rows = [waiting(id, tenant=id % num_tenants, max_output_tokens=8) for id in range(1, 4 * num_tenants + 1)]
    tenants = Tenants.of(*(Tenant(name=str(index), service=float(index % 2)) for index in range(num_tenants)))
    limits = {"max_num_seqs": 2 * num_tenants, "max_num_batched_tokens": 4096, "num_blocks": 4096}
    plan = plan_executor(executor_of(*rows, tenants=tenants, **limits), Policy(ordering=Ordering.FAIR))
    assert sorted(plan.admit.id.tolist()) == list(range(1, 2 * num_tenants + 1))
