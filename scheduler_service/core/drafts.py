"""Speculated tokens, which are verified in the pass that computes the newest one, as far as they cost nobody anything.

All else is decided as if nobody had any. Then each that decodes in the pass gets of its drafts, in order, as many as

- its answer may still have before its last token;
- the token budget has left;
- blocks hold beside the token that follows them: those that it has or that are held for it anyhow, and of the others
  those that nobody wants. Nobody wants a block unless someone waits for blocks, or the next token of one that runs
  takes it.

So no draft evicts anyone, keeps anyone out or makes a chunk smaller, not even in the next pass: a state that is sent
ahead counts all drafts as right, and right or wrong they leave to the others the blocks that they need next.
"""

from __future__ import annotations

from scheduler_service.core.admission import Entering
from scheduler_service.core.case import NUM_DRAFT_TOKENS, Case, in_decode, num_tokens
from scheduler_service.core.claims import Missing
from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.memory import blocks_for, blocks_in_all
from scheduler_service.core.policy import Admission
from scheduler_service.core.rows import total
from scheduler_service.core.state import IntArray
from scheduler_service.core.work import most_outputs_left

# Holds what the pass stores, and no more.
_WATERMARK = int(Admission.WATERMARK)


@compiled
def with_drafts(
    running: IntArray, num_run: IntArray, entering: Entering, missing: Missing, ran_out: bool, case: Case
) -> IntArray:
    """Tokens of each of `running`, which is in order, with its drafts. `num_run`: without.

    `missing`: what keeps the first out that waits.
    """
    if not _have_drafts(running, num_run, case):
        return num_run
    num_left = case.limits.max_num_batched_tokens - total(num_run) - total(entering.num_tokens)
    is_backed = entering.num_blocks_left >= 0
    wanted = ran_out or missing.reason == Reason.WAITING_FOR_BLOCKS
    num_spare = -1 if wanted else entering.num_blocks_left
    for row in running:
        num_spare -= _growth(case, row, is_backed)
    for row in entering.rows:
        num_spare -= _growth(case, row, is_backed)
    num_with_drafts = num_run.copy()
    for place in range(len(running)):
        row = running[place]
        if num_run[place] > 0 and in_decode(case, row):
            growth, num_blocks = 0, _blocks_had(case, row, is_backed)
            if num_spare >= 0:
                growth = _growth(case, row, is_backed)
                num_blocks += growth + num_spare
            room = num_blocks * case.limits.block_size - num_tokens(case, row) - 1
            count = min(case.requests[NUM_DRAFT_TOKENS, row], most_outputs_left(case, row) - 1, num_left, room)
            if count > 0:
                num_with_drafts[place] += count
                num_left -= count
                num_spare -= max(_next_blocks(case, row, count) - _blocks_had(case, row, is_backed) - growth, 0)
    return num_with_drafts


@lean
def _have_drafts(running: IntArray, num_run: IntArray, case: Case) -> bool:
    for place in range(len(running)):
        if num_run[place] > 0 and case.requests[NUM_DRAFT_TOKENS, running[place]] > 0:
            return True
    return False


@rule
def _blocks_had(case: Case, row: int, is_backed: bool) -> int:
    """Blocks that it has in this pass without drafts, and those held for it if there are so many (`is_backed`)."""
    return blocks_in_all(case, row, case.policy.admission if is_backed else _WATERMARK)


@rule
def _next_blocks(case: Case, row: int, num_drafts: int) -> int:
    """Blocks that it has once the token is stored that follows its newest one and so many drafts."""
    return blocks_for(num_tokens(case, row) + num_drafts + 1, case.limits.block_size)


@rule
def _growth(case: Case, row: int, is_backed: bool) -> int:
    """Blocks that its next token takes, in the pass after this one."""
    return max(_next_blocks(case, row, 0) - _blocks_had(case, row, is_backed), 0)
