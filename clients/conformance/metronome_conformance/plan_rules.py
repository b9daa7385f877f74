"""Whether a plan keeps the invariants of the contract (docs/invariants.md), for a state and a policy.

Rules that depend on the order of requests are checked where the contract alone gives that order (FIFO); ageing,
fairness and reservations leave a scheduler choices that one plan cannot show to be wrong, so for those the kit has what
holds for every order. Numbers in the findings are those of `metronome.scheduler.v1.Invariant`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from metronome.scheduler.v1 import plan_pb2, policy_pb2, state_pb2
from metronome_conformance.rows import LOADING, RUNNING, SWAPPED, WAITING, Row, blocks_counted_twice, rows_of

DEFAULT_CHUNK_SIZE = 512
DEFAULT_MAX_TIMES_OVERTAKEN = 16
_TOO_LARGE = (plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS, plan_pb2.REASON_REJECTED_EXCEEDS_MODEL_LEN)
_ONE_PHASE = (policy_pb2.BATCH_COMPOSITION_DECODE_FIRST, policy_pb2.BATCH_COMPOSITION_SEPARATE)
_PREFILLS_LEAD = (policy_pb2.BATCH_COMPOSITION_PREFILL_FIRST, policy_pb2.BATCH_COMPOSITION_SEPARATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A state and a plan, as dictionaries by id."""

    state: state_pb2.ExecutorState
    policy: policy_pb2.Policy
    plan: plan_pb2.ExecutorPlan
    rows: dict[int, Row]
    scheduled: dict[int, int]
    entering: dict[int, Row]
    evicted: dict[int, int]
    rejected: dict[int, int]

    def those(self, *statuses: int) -> list[Row]:
        """Requests that stand there, in the order of arrival."""
        return sorted((row for row in self.rows.values() if row.status in statuses), key=lambda row: row.order)

    @property
    def chunk_size(self) -> int:
        return self.policy.chunk_size_tokens if self.policy.HasField("chunk_size_tokens") else DEFAULT_CHUNK_SIZE

    @property
    def is_fifo(self) -> bool:
        return self.policy.ordering in (policy_pb2.ORDERING_UNSPECIFIED, policy_pb2.ORDERING_FIFO)

    @property
    def for_priority(self) -> bool:
        return self.policy.preemption == policy_pb2.PREEMPTION_FOR_PRIORITY

    def blocks_for(self, id: int, num_tokens: int) -> int:
        return self.rows[id].blocks_for(num_tokens, self.state.limits.block_size)


def plan_faults(
    state: state_pb2.ExecutorState, policy: policy_pb2.Policy, plan: plan_pb2.ExecutorPlan
) -> tuple[str, ...]:
    """All that is wrong with a plan, each a sentence; empty: nothing. Lists that make no sense are reported alone."""
    rows = rows_of(state.requests)
    faults = [*_shape(state, plan), *_one_fate(rows, plan)]
    if faults:
        return tuple(faults)
    case = _Case(
        state=state,
        policy=policy,
        plan=plan,
        rows=rows,
        scheduled=dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True)),
        entering={id: rows[id] for id in (*plan.admit.id, *plan.resume.id)},
        evicted=dict(zip(plan.evict.id, plan.evict.mode, strict=True)),
        rejected=dict(zip(plan.reject.id, plan.reject.reason, strict=True)),
    )
    return tuple(fault for rule in _RULES for fault in rule(case))


def _shape(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> Iterator[str]:
    """The plan is for this pass, and its columns have one length each."""
    if (plan.executor_id, plan.iteration) != (state.executor_id, state.iteration):
        asked = f"iteration {state.iteration} of {state.executor_id!r}"
        yield f"8: the plan is for iteration {plan.iteration} of {plan.executor_id!r}, asked for was {asked}"
    for name in ("scheduled", "admit", "resume", "evict", "reject"):
        table = getattr(plan, name)
        lengths = {field.name: len(getattr(table, field.name)) for field in table.DESCRIPTOR.fields}
        wrong = [column for column, length in lengths.items() if length != lengths["id"]]
        if wrong:
            yield f"{name}: column {wrong[0]} has {lengths[wrong[0]]} rows, id has {lengths['id']}"
        elif "reason" in lengths and list(table.reason).count(plan_pb2.REASON_UNSPECIFIED):
            yield f"{name}: a row has no reason"


def _one_fate(rows: dict[int, Row], plan: plan_pb2.ExecutorPlan) -> Iterator[str]:
    entering = {*plan.admit.id, *plan.resume.id}
    lists: tuple[tuple[str, list[int], tuple[int, ...]], ...] = (
        ("scheduled", [id for id in plan.scheduled.id if id not in entering], (RUNNING,)),
        ("admit", list(plan.admit.id), (WAITING,)),
        ("resume", list(plan.resume.id), (SWAPPED,)),
        ("evict", list(plan.evict.id), (RUNNING,)),
        ("reject", list(plan.reject.id), (WAITING, SWAPPED)),
    )
    for id, times in Counter(id for _, ids, _ in lists for id in ids).items():
        if times > 1:
            yield f"4: request {id} is in more than one place of the plan"
    for name, ids, statuses in lists:
        for id in ids:
            if id not in rows:
                yield f"4: {name} names {id}, which the executor does not have"
            elif rows[id].status not in statuses:
                yield f"4: {name} names {id}, which is {state_pb2.RequestStatus.Name(rows[id].status)}"
    scheduled = Counter(plan.scheduled.id)
    for id in sorted(entering):
        if scheduled[id] != 1:
            yield f"4: {id} enters and is scheduled {scheduled[id]} times"


def _batch_limits(case: _Case) -> Iterator[str]:
    limits, num_tokens = case.state.limits, sum(case.scheduled.values())
    if num_tokens > limits.max_num_batched_tokens:
        yield f"1: {num_tokens} tokens are scheduled, the budget is {limits.max_num_batched_tokens}"
    num_seqs = len(case.those(RUNNING, LOADING)) - len(case.evicted) + len(case.entering)
    if num_seqs > limits.max_num_seqs:
        yield f"1: {num_seqs} requests would run, the limit is {limits.max_num_seqs}"
    num_prefills = sum(not case.rows[id].in_decode for id in case.scheduled)
    policy = case.policy
    if policy.HasField("max_num_partial_prefills") and num_prefills > policy.max_num_partial_prefills:
        yield f"1: {num_prefills} requests prefill, the policy allows {policy.max_num_partial_prefills}"


def _blocks(case: _Case) -> Iterator[str]:
    needed = sum(case.blocks_for(id, num_tokens) for id, num_tokens in case.scheduled.items())
    needed -= blocks_counted_twice(case.state, case.entering.values())
    freed = sum(case.rows[id].num_blocks - case.rows[id].num_shared_blocks for id in case.evicted)
    free = case.state.num_free_blocks + freed
    if needed > free:
        yield f"2: the pass needs {needed} blocks, {free} are free"
    swapped = sum(case.rows[id].num_blocks for id, mode in case.evicted.items() if mode == plan_pb2.EVICT_MODE_SWAP)
    if swapped > case.state.num_free_swap_blocks:
        yield f"2: evictions swap {swapped} blocks, {case.state.num_free_swap_blocks} are free"
    unknown = [mode for mode in case.evicted.values() if mode not in (1, 2)]
    if unknown:
        yield f"an eviction has the mode {unknown[0]}, which is none"


def _tokens(case: _Case) -> Iterator[str]:
    for id, num_tokens in case.scheduled.items():
        most = case.rows[id].most_tokens(case.chunk_size)
        if not 1 <= num_tokens <= most:
            yield f"3: {id} runs {num_tokens} tokens, and may run 1 to {most}"


def _progress(case: _Case) -> Iterator[str]:
    limits, free = case.state.limits, case.state.num_free_blocks
    for row in case.those(WAITING):
        if row.started:
            continue
        fits = row.can_fit(limits)
        if not fits and row.id not in case.rejected:
            yield f"5: {row.id} can never fit with {row.longest()} tokens, and waits"
        if fits and case.rejected.get(row.id) in _TOO_LARGE:
            yield f"5: {row.id} is rejected as too large, and fits"
    if case.scheduled:
        return
    able = [row.id for row in case.those(RUNNING) if row.blocks_for(1, limits.block_size) <= free]
    if able:
        yield f"5: nothing is scheduled, and {able[0]} has a block for its next token"
    alone = not case.those(RUNNING, LOADING)
    waiting = [row for row in case.those(WAITING, SWAPPED) if row.id not in case.rejected]
    fitting = [row for row in waiting if row.blocks_for(row.num_lacking, limits.block_size) <= free]
    # Under RESERVE and PREDICTIVE more than the prompt must fit, which an empty executor has for whoever can ever fit.
    if alone and free == limits.num_blocks and waiting and fitting == waiting:
        yield f"5: nothing is scheduled on an idle executor, and {fitting[0].id} would fit"


def _no_livelock(case: _Case) -> Iterator[str]:
    running = case.those(RUNNING)
    if case.for_priority and case.entering:
        return
    if case.evicted and case.entering:
        yield f"6: {min(case.entering)} enters in a pass in which blocks ran out"
    if case.is_fifo and running and running[0].id in case.evicted:
        yield f"6: {running[0].id} is the first in order, and is evicted"
    if len(case.evicted) == len(running) > 0 and not case.those(LOADING):
        yield "6: everybody is evicted, and nobody goes on"


def _no_starvation(case: _Case) -> Iterator[str]:
    if not case.is_fifo or case.policy.hold_for_shared_prefix:
        return
    queue = sorted(case.those(WAITING, SWAPPED), key=lambda row: (not row.started, row.order))
    queue = [row for row in queue if row.id not in case.rejected]
    head_of_line = case.policy.head_of_line
    for place, row in enumerate(queue):
        behind = [other.id for other in queue[place + 1 :] if other.id in case.entering]
        if row.id in case.entering or not behind:
            continue
        if head_of_line in (policy_pb2.HEAD_OF_LINE_UNSPECIFIED, policy_pb2.HEAD_OF_LINE_STRICT):
            yield f"7: {behind[0]} passes {row.id}"
            return
        most = case.policy.max_times_overtaken
        most = most if case.policy.HasField("max_times_overtaken") else DEFAULT_MAX_TIMES_OVERTAKEN
        times = row.times_overtaken + sum(case.rows[id].order > row.order for id in behind)
        if head_of_line == policy_pb2.HEAD_OF_LINE_SKIP and times > most:
            yield f"7: {row.id} is overtaken for the {times}th time, allowed are {most}"


def _evictions(case: _Case) -> Iterator[str]:
    if not case.evicted:
        return
    if case.policy.preemption == policy_pb2.PREEMPTION_NEVER:
        yield "9: somebody is evicted, and the policy never evicts"
    if not (case.for_priority and case.entering):
        # Nobody is evicted for the drafts of another.
        running = case.those(RUNNING)
        wanted = sum(case.blocks_for(row.id, min(row.num_lacking, case.chunk_size)) for row in running)
        if wanted <= case.state.num_free_blocks:
            free = case.state.num_free_blocks
            yield f"9: all that run need {wanted} blocks, {free} are free, and somebody is evicted"


def _decodes(case: _Case) -> Iterator[str]:
    composition = case.policy.batch_composition
    prefills = [id for id in case.scheduled if not case.rows[id].in_decode]
    if prefills and len(prefills) < len(case.scheduled) and composition in _ONE_PHASE:
        yield "10: the pass holds prefills and decodes, and may hold one of them"
    decodes = [row for row in case.those(RUNNING) if row.in_decode and row.id not in case.evicted]
    size = case.state.limits.block_size
    waits = [row for row in decodes if row.id not in case.scheduled and row.blocks_for(1, size) == 0]
    if not waits:
        return
    first = min(waits, key=lambda row: row.last_run_iteration)
    if prefills and composition not in _PREFILLS_LEAD:
        yield f"10: {first.id} decodes and waits while {prefills[0]} prefills"
    for row in decodes:
        if row.id in case.scheduled and row.last_run_iteration > first.last_run_iteration:
            passes = f"{first.last_run_iteration}, {row.id} in {row.last_run_iteration}"
            yield f"10: {first.id} waits and {row.id} runs; {first.id} last ran in pass {passes}"


def _figures(case: _Case) -> Iterator[str]:
    """The composition says what the lists say."""
    if not case.plan.HasField("composition"):
        return
    told, decodes = case.plan.composition, [id for id in case.scheduled if case.rows[id].in_decode]
    num_tokens, num_decode = sum(case.scheduled.values()), sum(case.scheduled[id] for id in decodes)
    found = (num_tokens - num_decode, num_decode, len(case.scheduled) - len(decodes), len(decodes))
    said = (
        told.num_prefill_tokens,
        told.num_decode_tokens,
        told.num_prefill_requests,
        told.num_decode_requests,
    )
    if found != said:
        yield f"the composition says {said}, the lists {found}"
    if case.plan.kv_residency_charge != case.policy.kv_residency_charge:
        yield f"7: the plan charges {case.plan.kv_residency_charge}, the policy {case.policy.kv_residency_charge}"


_RULES = (
    _batch_limits,
    _blocks,
    _tokens,
    _progress,
    _no_livelock,
    _no_starvation,
    _evictions,
    _decodes,
    _figures,
)
