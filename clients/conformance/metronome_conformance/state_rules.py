"""Whether the states that an executor sends keep the contract, each by itself and one after the other.

The second is how an executor shows that it obeys: what a plan for pass i evicts, admits and runs must be seen in the
state for pass i + 1. Where an executor asks for a pass twice, either answer may be the one that it carried out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metronome.scheduler.v1 import plan_pb2, state_pb2
from metronome_conformance.planner import Planned
from metronome_conformance.rows import LOADING, RUNNING, SWAPPED, WAITING, Row, reused_prefixes, rows_of


def state_faults(state: state_pb2.ExecutorState) -> Iterator[str]:
    """What is wrong with one state."""
    limits = state.limits
    sizes = ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "max_model_len")
    for name in sizes:
        if getattr(limits, name) <= 0:
            yield f"limits.{name} is {getattr(limits, name)}, it must be above 0"
            return
    if not state.executor_id or state.iteration <= 0:
        yield f"iteration {state.iteration} of {state.executor_id!r}: both must be set"
    try:
        rows = rows_of(state.requests)
    except ValueError as error:
        yield str(error)
        return
    if len(rows) != len(state.requests.id):
        yield "an id stands twice"
    for row in rows.values():
        yield from _row_faults(row, limits)
    yield from _prefix_faults(state, rows)
    for name, free, all_blocks, statuses in (
        ("device", state.num_free_blocks, limits.num_blocks, (RUNNING, LOADING)),
        ("swap", state.num_free_swap_blocks, limits.num_swap_blocks, (SWAPPED,)),
    ):
        alone = sum(row.num_blocks - row.num_shared_blocks for row in rows.values() if row.status in statuses)
        if not 0 <= free <= all_blocks or alone + free > all_blocks:
            yield f"{alone} {name} blocks are held and {free} free, of {all_blocks}"


def _prefix_faults(state: state_pb2.ExecutorState, rows: dict[int, Row]) -> Iterator[str]:
    """Free blocks that several would reuse are free, told of once, and among those of whoever would reuse them."""
    num_blocks = sum(state.cached_prefixes.num_free_blocks)
    if num_blocks > state.num_free_blocks:
        yield f"cached prefixes have {num_blocks} free blocks, and {state.num_free_blocks} are free"
    try:
        reused = {id: sum(reused_prefixes(state, row).values()) for id, row in rows.items()}
    except ValueError as error:
        yield str(error)
        return
    for id, count in reused.items():
        alone = rows[id].num_blocks - rows[id].num_shared_blocks
        if count > alone:
            yield f"request {id} would reuse {count} free blocks with others, and {alone} in all"


def _row_faults(row: Row, limits: state_pb2.ExecutorLimits) -> Iterator[str]:
    if row.id <= 0 or row.num_prompt_tokens < 1:
        yield f"request {row.id} has {row.num_prompt_tokens} prompt tokens"
    if row.status not in (WAITING, RUNNING, SWAPPED, LOADING):
        yield f"request {row.id} has the status {row.status}"
    most = row.num_tokens - 1 if row.num_output_tokens else row.num_prompt_tokens
    if not 0 <= row.num_computed_tokens <= most:
        yield f"request {row.id} has {row.num_computed_tokens} tokens computed, at most {most} can be"
    if row.is_on_device and row.num_blocks * limits.block_size < row.num_computed_tokens:
        yield f"request {row.id} stores {row.num_computed_tokens} tokens in {row.num_blocks} blocks"
    if row.num_shared_blocks > row.num_blocks:
        yield f"request {row.id} shares {row.num_shared_blocks} of {row.num_blocks} blocks"


def obedience_faults(planned: Sequence[Planned]) -> Iterator[str]:
    """What a state shows not to have been done of the plan before it."""
    for i, later in enumerate(planned):
        iteration = later.state.iteration
        earlier = [p for p in planned[:i] if p.state.iteration == iteration - 1]
        if i and iteration < planned[i - 1].state.iteration:
            yield f"the state of pass {iteration} came after that of pass {planned[i - 1].state.iteration}"
        if not earlier or any(p.plan is None for p in earlier):
            continue
        faults = [list(_step_faults(p.state, p.plan, later.state)) for p in earlier if p.plan is not None]
        if all(faults):
            yield faults[-1][0]


def _step_faults(
    state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan, later: state_pb2.ExecutorState
) -> Iterator[str]:
    """A request that is not there any more has ended meanwhile: a plan decides nothing about that."""
    before, after = rows_of(state.requests), rows_of(later.requests)
    where = f"the plan of pass {state.iteration}"
    for id in plan.evict.id:
        if id in after and after[id].is_on_device:
            yield f"{where} evicts request {id}, and pass {later.iteration} has it on the device"
        elif id in after and after[id].num_preemptions <= before[id].num_preemptions:
            yield f"{where} evicts request {id}, and its evictions are not counted"
    for id in (*plan.admit.id, *plan.resume.id):
        if id in after and not after[id].is_on_device:
            yield f"{where} lets request {id} in, and pass {later.iteration} does not have it on the device"
    for id in plan.reject.id:
        if id in after:
            yield f"{where} rejects request {id}, and pass {later.iteration} still has it"
    scheduled = dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True))
    for id, row in before.items():
        if id not in after or row.status != RUNNING or id in plan.evict.id:
            continue
        computed = after[id].num_computed_tokens - row.num_computed_tokens
        due = scheduled.get(id, 0)
        # Of drafts, those count that the pass found right.
        least = min(due, 1) if row.num_draft_tokens else due
        if not least <= computed <= due:
            yield f"{where} runs {due} tokens of request {id}, and {computed} were computed"
