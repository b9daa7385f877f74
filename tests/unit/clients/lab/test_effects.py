"""What docs/policies.md says that settings do, on executors so small that each effect can be followed by hand.

The pages of docs/lab show the same at full size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from executor_service.kv.prefix_cache import PrefixScope
from metronome_lab.policies import policy_with
from metronome_lab.records import Outcome, Records
from metronome_lab.simulation import Fleet, simulate
from metronome_lab.workload.requests import Workload
from scheduler_service.core.placement import Placement
from support.lab import hardware_of, workload_of

LATE_MS = 10_000


def played(workload: Workload, settings: str, **sizes: Any) -> Records:
    """One executor with eight places and a thousand blocks unless said, and no prefix cache."""
    sizes = {"num_blocks": 1000, "max_model_len": 4096, "prefix_scope": PrefixScope.OFF} | sizes
    return simulate(workload, Fleet(hardware=hardware_of(**sizes)), policy_with(settings))


def waits_ms(records: Records) -> list[float]:
    requests = records.requests
    return ((requests.first_run_us - requests.workload.arrival_us) / 1e3).tolist()


def ttfts_ms(records: Records) -> list[float]:
    requests = records.requests
    return ((requests.first_token_us - requests.workload.arrival_us) / 1e3).tolist()


def num_passes_before(records: Records, index: int) -> int:
    """Passes until a request first runs."""
    return int((records.iterations.columns()["start_us"] < records.requests.first_run_us[index]).sum())


def outcomes(records: Records) -> list[Outcome]:
    return [Outcome(outcome) for outcome in records.requests.outcome.tolist()]


# One place. A background request runs; four more wait, and an urgent one comes last.
QUEUE = workload_of(*((number, 32, 20) for number in range(6)), priority=np.array([0, 0, 0, 0, 0, 1]))


def test_priority_lets_the_urgent_pass_and_a_short_aging_takes_that_back() -> None:
    fifo, strict, aged = (
        waits_ms(played(QUEUE, settings, max_num_seqs=1))
        for settings in ("ordering=FIFO", "ordering=PRIORITY,aging_seconds=60", "ordering=PRIORITY,aging_seconds=0.001")
    )

    assert strict[5] < min(strict[1:5])
    assert aged == fifo
    assert all(later > before for later, before in zip(strict[1:5], fifo[1:5], strict=True))


def test_for_priority_evicts_for_the_urgent_and_the_evicted_pays() -> None:
    when_full, for_priority, never = (
        played(QUEUE, f"ordering=PRIORITY,aging_seconds=60,{settings}", max_num_seqs=1)
        for settings in ("preemption=WHEN_FULL", "preemption=FOR_PRIORITY", "preemption=NEVER,admission=RESERVE")
    )

    assert waits_ms(for_priority)[5] < 2 < waits_ms(when_full)[5] == waits_ms(never)[5]
    assert for_priority.requests.num_preemptions.tolist() == [1, 0, 0, 0, 0, 0]
    assert for_priority.requests.end_us[0] > when_full.requests.end_us[0]
    assert when_full.requests.num_preemptions.sum() == never.requests.num_preemptions.sum() == 0


def test_earliest_deadline_first_meets_deadlines_and_those_without_wait() -> None:
    """One place, 21 ms a request."""
    deadline_us = np.array([0, 0, 0, 80_000, 60_000, 140_000])
    workload = replace(QUEUE, deadline_us=deadline_us)

    fifo, first = (
        played(workload, f"ordering={ordering}", max_num_seqs=1) for ordering in ("FIFO", "EARLIEST_DEADLINE_FIRST")
    )

    assert outcomes(fifo).count(Outcome.EXPIRED) == 2
    assert outcomes(first).count(Outcome.EXPIRED) == 0
    assert min(waits_ms(first)[1:3]) > max(waits_ms(first)[3:])


def test_a_request_that_would_be_late_even_alone_is_rejected_before_it_costs_anything() -> None:
    workload = workload_of((0, 32, 100), (0, 32, 20), deadline_us=np.array([50_000, 0]))

    expired, rejected = (
        played(workload, f"ordering=EARLIEST_DEADLINE_FIRST,reject_missed_deadlines={reject}", max_num_seqs=1)
        for reject in ("false", "true")
    )

    assert outcomes(expired) == [Outcome.EXPIRED, Outcome.FINISHED]
    assert outcomes(rejected) == [Outcome.REJECTED, Outcome.FINISHED]
    assert rejected.requests.num_run_tokens[0] == 0 < expired.requests.num_run_tokens[0]
    assert waits_ms(rejected)[1] < waits_ms(expired)[1]


# Three long prompts and five short ones at once, one place, far more than can be on time.
LENGTHS = workload_of(*((0, prompt, 2) for prompt in (2000, 100, 2000, 100, 100, 2000, 100, 100)))


def test_the_shortest_prefill_first_makes_fewer_wait_long_and_the_long_prompts_pay() -> None:
    fifo, shortest = (
        ttfts_ms(played(LENGTHS, f"ordering={ordering}", max_num_seqs=1))
        for ordering in ("FIFO", "SHORTEST_PREFILL_FIRST")
    )

    assert np.median(shortest) < np.median(fifo) / 3
    assert shortest[0] > fifo[0]


@pytest.mark.parametrize("target_ms", [LATE_MS, 1])
def test_fewest_late_goes_by_size_where_all_can_wait_and_where_nobody_can_be_in_time(target_ms: int) -> None:
    fewest, by_size = (
        waits_ms(played(LENGTHS, settings, max_num_seqs=1))
        for settings in (
            f"ordering=FEWEST_LATE,target_time_to_first_token_us={target_ms * 1000}",
            "ordering=SHORTEST_PREFILL_FIRST,aging_seconds=1000",
        )
    )

    assert fewest == by_size


def test_fewest_late_goes_by_arrival_where_nobody_can_wait_and_all_can_be_in_time() -> None:
    """The first takes 36 ms, and with what waits then the others would take longer than half of 120."""
    workload = workload_of((0, 2000, 2), (1, 100, 2), (2, 2000, 2), (3, 100, 2))
    tight, wide, by_arrival = (
        waits_ms(played(workload, settings, max_num_seqs=1))
        for settings in (
            "ordering=FEWEST_LATE,target_time_to_first_token_us=120000",
            "ordering=FEWEST_LATE,target_time_to_first_token_us=200000",
            "ordering=FIFO",
        )
    )

    assert tight == by_arrival
    assert wide[3] < wide[2]


def test_fair_charged_for_blocks_lets_those_pass_that_hold_few() -> None:
    """Tenant a holds long contexts and computes few tokens; b computes as many and holds little for long."""
    a, b = [(number, 400, 60) for number in range(12)], [(number, 200, 2) for number in range(24)]
    workload = workload_of(*a, *b, tenant=np.repeat([0, 1], [12, 24]), tenants=("a", "b"))
    tokens_alone, charged = (
        played(workload, f"ordering=FAIR,kv_residency_charge={charge}", num_blocks=96, max_num_seqs=16)
        for charge in (0, 4)
    )

    def mean_wait(records: Records, tenant: int) -> float:
        return float(np.array(waits_ms(records))[records.requests.workload.tenant == tenant].mean())

    assert mean_wait(charged, 1) < mean_wait(tokens_alone, 1)
    assert mean_wait(charged, 0) > mean_wait(tokens_alone, 0)


# One long request leaves 7 of 24 blocks, and the next one needs 20. Behind it are one that would hold 7 for long, and
# eight short ones.
HEAD = workload_of((0, 200, 60), (1, 250, 60), (2, 10, 100), *((2, 16, 10) for _ in range(8)))
HELD = {"num_blocks": 24, "max_num_seqs": 16, "max_model_len": 400}


def test_behind_one_that_does_not_fit_nobody_passes_or_so_many_or_all_that_do_not_delay_it() -> None:
    runs = [
        played(HEAD, f"admission=RESERVE,{rule}", **HELD)
        for rule in (
            "head_of_line=STRICT",
            "head_of_line=SKIP,max_times_overtaken=2",
            "head_of_line=SKIP,max_times_overtaken=100",
            "head_of_line=BACKFILL",
        )
    ]

    strict, skip, skip_more, backfill = map(waits_ms, runs)
    assert min(strict[2:]) >= strict[1]
    assert sum(wait < skip[1] for wait in skip[2:]) == 2
    assert sum(wait < skip_more[1] for wait in skip_more[2:]) > 2
    assert sum(wait < backfill[1] for wait in backfill[2:]) > 2
    # By no pass, though passes in which more run take longer.
    assert num_passes_before(runs[3], 1) == num_passes_before(runs[0], 1) < num_passes_before(runs[2], 1)
    assert backfill[1] > strict[1]


def test_backfill_lets_nobody_pass_whose_length_is_open() -> None:
    strict, backfill = (
        waits_ms(played(HEAD.bounded_by(120).without_estimates(), f"head_of_line={rule}", **HELD))
        for rule in ("STRICT", "BACKFILL")
    )

    assert strict == backfill


# Twelve answers of 20 tokens that may have 160, in a cache that holds two reservations or five answers.
OPEN = workload_of(*((0, 32, 40) for _ in range(12))).bounded_by(160)


def test_to_reserve_evicts_nobody_and_waits_and_to_predict_needs_good_estimates() -> None:
    sizes = {"num_blocks": 24, "max_num_seqs": 12}
    reserve, watermark, predictive = (
        played(OPEN, f"eviction=RECOMPUTE,watermark=0,admission={admission}", **sizes)
        for admission in ("RESERVE", "WATERMARK", "PREDICTIVE")
    )
    short = replace(OPEN, expected_output_tokens=np.full(12, 2, dtype=np.int32))
    wrong = played(short, "eviction=RECOMPUTE,watermark=0,admission=PREDICTIVE", **sizes)

    evictions = [int(records.requests.num_preemptions.sum()) for records in (reserve, watermark, predictive, wrong)]
    assert evictions[0] == evictions[2] == 0 < min(evictions[1], evictions[3])
    assert reserve.end_us > 1.5 * max(watermark.end_us, predictive.end_us)


def test_a_share_that_stays_free_saves_evictions_and_lets_in_later() -> None:
    tight, roomy = (
        played(OPEN, f"eviction=RECOMPUTE,watermark={share}", num_blocks=24, max_num_seqs=12) for share in (0, 0.4)
    )

    assert roomy.requests.num_preemptions.sum() < tight.requests.num_preemptions.sum()
    assert np.mean(waits_ms(roomy)[:8]) > np.mean(waits_ms(tight)[:8])


def test_the_cheapest_victim_is_the_short_one() -> None:
    """One has to leave. The first in order stays; what differs between the others is how full their last blocks are."""
    workload = workload_of((0, 90, 60), (0, 17, 60), (0, 90, 60))
    last, cheapest = (
        played(workload, f"eviction=RECOMPUTE,watermark=0,victim={victim}", num_blocks=23).requests
        for victim in ("LAST_IN_ORDER", "CHEAPEST")
    )

    assert last.num_preemptions.tolist() == [0, 0, 1]
    assert cheapest.num_preemptions.tolist() == [0, 1, 0]
    assert 0 < cheapest.num_recomputed_tokens.sum() < last.num_recomputed_tokens.sum()


# Two decode when three prompts come.
JOINING = workload_of((0, 16, 60), (0, 16, 60), *((10, 600, 1) for _ in range(3)))


def test_prefills_first_stop_the_decodes_and_have_first_tokens_sooner() -> None:
    mixed, prefills, separate, decodes = (
        played(JOINING, f"chunk_size_tokens=64,batch_composition={composition}")
        for composition in ("MIXED", "PREFILL_FIRST", "SEPARATE", "DECODE_FIRST")
    )

    longest_gap = [int(records.requests.max_gap_us[:2].max()) for records in (mixed, prefills, separate, decodes)]
    first_tokens = [float(np.mean(ttfts_ms(records)[2:])) for records in (mixed, prefills, separate, decodes)]
    assert longest_gap[3] < longest_gap[0] < min(longest_gap[1:3]) / 3
    assert max(first_tokens[1:3]) <= first_tokens[0] < first_tokens[3]


def test_those_that_decode_take_turns_where_the_budget_does_not_hold_them() -> None:
    """Prefills first, so that all eight decode at last, with a budget of four."""
    records = played(
        workload_of(*((0, 8, 40) for _ in range(8))), "batch_composition=PREFILL_FIRST", max_num_batched_tokens=4
    )

    passes = records.iterations.columns()
    turns = passes["num_decode_tokens"][passes["num_running"] == 8]
    assert turns.max() == 4
    assert records.requests.max_gap_us[-1] <= 2 * passes["duration_us"].max()


def test_prompts_that_share_alike_let_the_short_one_end_sooner_and_the_long_one_later() -> None:
    """The long one comes first, with chunks that fill the pass; under EQUAL the others begin beside it all the same."""
    workload = workload_of((0, 2000, 2), (0, 200, 2), (0, 200, 2))
    in_turn, alike = (
        ttfts_ms(played(workload, f"chunk_size_tokens=128,prefill_sharing={sharing}"))
        for sharing in ("FIRST_COME", "EQUAL")
    )

    assert alike[1] < in_turn[1]
    assert alike[0] > in_turn[0]


def test_one_prompt_at_a_time_makes_those_that_join_wait_and_passes_shorter() -> None:
    all_at_once, one = (
        played(JOINING, f"chunk_size_tokens=40{setting}") for setting in ("", ",max_num_partial_prefills=1")
    )

    assert one.requests.max_gap_us[:2].max() < all_at_once.requests.max_gap_us[:2].max()
    assert ttfts_ms(one)[4] > ttfts_ms(all_at_once)[4]


@pytest.mark.parametrize("setting", ["target_inter_token_latency_us=1500", "max_inter_token_slowdown=1.4"])
def test_a_bound_on_passes_keeps_gaps_short_and_first_tokens_later(setting: str) -> None:
    """Two that decode take 1.1 ms a pass."""
    free, bounded = (played(JOINING, f"chunk_size_tokens=128,{s}") for s in ("watermark=0.01", setting))

    assert bounded.requests.max_gap_us[:2].max() <= 1600 < free.requests.max_gap_us[:2].max()
    assert ttfts_ms(bounded)[2] > ttfts_ms(free)[2]


def test_a_target_that_cannot_be_met_still_lets_prompts_go_on_by_a_block_a_pass() -> None:
    records = played(JOINING, "chunk_size_tokens=128,target_inter_token_latency_us=1")

    beside = records.iterations.columns()
    assert set(beside["num_prefill_tokens"][beside["num_decode_tokens"] > 0].tolist()) <= {0, 8, 16}
    assert outcomes(records) == [Outcome.FINISHED] * 5


def test_those_that_begin_alike_wait_for_one_that_computes_it() -> None:
    prefixes = [np.array([7, 8], dtype=np.int32)] * 3
    workload = workload_of(*((0, 1100, 2) for _ in range(3)), prefixes=prefixes)
    sizes = {"max_num_batched_tokens": 4096, "num_blocks": 600, "prefix_scope": PrefixScope.TENANT}
    each, held = (
        played(workload, f"chunk_size_tokens=4096,hold_for_shared_prefix={hold}", **sizes) for hold in ("false", "true")
    )

    computed = [int(records.requests.num_run_tokens.sum()) for records in (each, held)]
    assert computed == [3 * 1101, 1101 + 2 * (76 + 1)]
    assert np.mean(ttfts_ms(held)) < np.mean(ttfts_ms(each))
    assert held.requests.first_run_us[1] > each.requests.first_run_us[1]


def test_a_limit_of_the_queue_turns_the_last_away_and_keeps_waits_short() -> None:
    flood = workload_of(*((number, 64, 20) for number in range(30)), tenant=np.arange(30) % 3 // 2, tenants=("a", "b"))
    open_queue, limited, of_tenant = (
        played(flood, settings, max_num_seqs=2)
        for settings in ("ordering=FIFO", "max_num_waiting=4", "max_num_waiting_per_tenant=4")
    )

    assert outcomes(open_queue).count(Outcome.REJECTED) == 0
    assert outcomes(limited).count(Outcome.REJECTED) > 10
    assert limited.iterations.columns()["num_waiting"].max() == 4
    assert max(waits_ms(limited)) < max(waits_ms(open_queue)) / 3
    rejected = of_tenant.requests.workload.tenant[of_tenant.requests.outcome == Outcome.REJECTED]
    assert of_tenant.iterations.columns()["num_waiting"].max() == 8
    assert 0 < (rejected == 1).sum() < (rejected == 0).sum()


def test_placement_by_load_waits_less_than_in_turn() -> None:
    """Every fourth request is long, so that in turn one of four executors gets all of these."""
    work = [(5 * number, 2000 if number % 4 == 0 else 100, 10) for number in range(40)]
    mean_wait = {}
    for placement in (Placement.ROUND_ROBIN, Placement.POWER_OF_TWO_CHOICES, Placement.LEAST_LOADED):
        hardware = hardware_of(num_blocks=1000, max_model_len=4096, max_num_seqs=2)
        fleet = Fleet(hardware=hardware, num_executors=4, placement=placement)
        mean_wait[placement] = np.mean(waits_ms(simulate(workload_of(*work), fleet, policy_with("ordering=FIFO"))))

    in_turn, of_two, least = mean_wait.values()
    assert least <= of_two < in_turn
    assert least < in_turn / 2
