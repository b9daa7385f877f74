"""Passes in which nobody enters, leaves or is turned away, one after another in machine code.

The books need not know of each. What the planner sees of them after such a pass follows from the table of requests
alone, since nothing happens in it but that those on the device go on:

- Who runs has more computed tokens, and one more of its answer where it lacked no other; it holds the blocks for them,
  which are as many fewer free ones. Which blocks they are does not matter to anybody.
- Its tenant has been served the tokens. They are whole numbers, which add up alike in any order; so policies that
  charge for blocks held are left out.
- What those that wait would reuse is as it was: `reuse.py` says how far that is certain.
- `next_block_hash` is left as it was, and means nothing to anybody: whoever waits for a text that another is about to
  compute would find it when that is computed, and that is ruled out above.

So the state of the next pass is there without the books being asked, and the planning core is called on it as it would
be otherwise: it is its plan that runs. The books are told at the end, of all passes at once.

Where the plan itself is certain it is not asked for: all that run decode, the token budget holds them, and nobody can
enter, since nobody waits, or all places are taken and no rank takes them from anybody, and no deadline can pass. The
pass in which an answer is complete is planned, for the order in which answers end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduler_service.core.case import (
    DEADLINE_US,
    ID,
    LAST_RUN_ITERATION,
    NUM_BLOCKS,
    NUM_COMPUTED_TOKENS,
    NUM_OUTPUT_TOKENS,
    TENANT,
    Case,
    in_decode,
    num_lacking_tokens,
    rows_with,
)
from scheduler_service.core.compiled import compiled, entry, lean, rule
from scheduler_service.core.memory import blocks_for
from scheduler_service.core.plan import decide
from scheduler_service.core.policy import Preemption
from scheduler_service.core.rows import zeros
from scheduler_service.core.state import IntArray, RequestStatus

# The columns of `Passes.figures`, in the order of the result file.
START_US, DURATION_US, NUM_PREFILL_TOKENS, NUM_DECODE_TOKENS, NUM_PREFILLS, NUM_FREE_BLOCKS = range(6)
NUM_FIGURES = 6
MOST_PASSES = 512
MOST_GAPS = 4096


class Outlook(NamedTuple):
    """What is known of the time ahead. Times are of the executor's clock, as in states.

    `stops_after`: [num_requests] tokens of each answer. `client`: [num_requests] whom its tokens are counted for.
    `until_us`: when the last pass must begin before. `wait_us`: by how much the first pass begins late, for its plan.
    `iteration`: of the first pass. `most_new_blocks`: as many as may be taken. `has_news`: the first pass is planned.
    `may_decide` False: only passes whose plans are certain.
    """

    stops_after: IntArray
    client: IntArray
    until_us: int
    wait_us: int
    iteration: int
    most_new_blocks: int
    has_news: bool
    may_decide: bool


class Progress(NamedTuple):
    """[num_requests] what becomes of each: tokens that ran, when it had its last and its first one, the longest time
    between two. The first is 0 where it is of another time.
    """

    num_run: IntArray
    last_token_us: IntArray
    first_token_us: IntArray
    max_gap_us: IntArray


class Passes(NamedTuple):
    """What is recorded of the passes, and room for more.

    `figures`: [NUM_FIGURES, MOST_PASSES]. `served`: [num_clients, MOST_PASSES] tokens. `gaps`: [2, n] times between two
    tokens of an answer, and how many there were. `finished`: who is complete, in order; `counts`: of passes, gaps,
    finished and plans.
    """

    figures: IntArray
    served: IntArray
    gaps: IntArray
    finished: IntArray
    counts: IntArray


NUM_PASSES, NUM_GAPS, NUM_FINISHED, NUM_PLANS = range(4)


def progress_from(last_token_us: IntArray, max_gap_us: IntArray) -> Progress:
    """Where nothing was played yet. `last_token_us`, `max_gap_us`: as they are before; both are changed."""
    num_run, first_token_us = np.zeros((2, len(last_token_us)), dtype=np.int64)
    return Progress(num_run, last_token_us, first_token_us, max_gap_us)


def room_for(num_clients: int, num_requests: int) -> Passes:
    """Room to record passes in."""
    return Passes(
        np.empty((NUM_FIGURES, MOST_PASSES), dtype=np.int64),
        np.zeros((num_clients, MOST_PASSES), dtype=np.int64),
        np.empty((2, MOST_GAPS + num_requests), dtype=np.int64),
        np.empty(num_requests, dtype=np.int64),
        np.zeros(4, dtype=np.int64),
    )


@entry
def play(case: Case, outlook: Outlook, progress: Progress, passes: Passes) -> bool:
    """Play quiet passes until one is not, an answer is complete, or time or the room for records comes to an end.

    Changes the tables of `case`, `progress` and `passes`. Returns whether the next pass, which is due, is not quiet.
    """
    running, by_id, counts = rows_with(RequestStatus.RUNNING, case), np.argsort(case.requests[ID]), passes.counts
    nobody_enters, most_new_blocks = _nobody_can_enter(running, case), outlook.most_new_blocks
    while counts[NUM_PASSES] < MOST_PASSES and counts[NUM_GAPS] < MOST_GAPS and case.now_us < outlook.until_us:
        has_news = outlook.has_news and counts[NUM_PASSES] == 0
        is_certain = nobody_enters and not has_news and _go_on_decoding(running, outlook, case)
        if not is_certain and not outlook.may_decide:
            return True
        turn = _Turn(running, _ones(len(running))) if is_certain else _planned(by_id, case)
        num_blocks = _num_new_blocks(turn, case)
        if len(turn.rows) == 0 or num_blocks > min(case.num_free_blocks, most_new_blocks):
            return True
        most_new_blocks -= num_blocks
        counts[NUM_PLANS] += not is_certain
        end_us = _run(turn, num_blocks, outlook, progress, passes, case)
        case = Case(  # records cannot be handed back by a function
            case.requests,
            case.rank,
            case.rank_within_tenant,
            case.parent,
            case.num_free_of_prefix,
            case.weight,
            case.service,
            end_us,
            case.num_free_blocks - num_blocks,
            case.num_free_swap_blocks,
            case.limits,
            case.latency,
            case.policy,
        )
        if counts[NUM_FINISHED] > 0:
            return False
    return False


class _Turn(NamedTuple):
    """Who runs in a pass, in the policy's order where it is planned, and the tokens of each."""

    rows: IntArray
    num_tokens: IntArray


@compiled
def _ones(count: int) -> IntArray:
    return np.ones(count, dtype=np.int64)


@compiled
def _planned(by_id: IntArray, case: Case) -> _Turn:
    """Who runs by the plan; nobody where it is not quiet. `by_id`: [num_requests] rows."""
    decision = decide(case)
    if decision.admit.size + decision.resume.size + decision.evict.size + decision.reject.size > 0:
        return _Turn(zeros(0), zeros(0))
    rows = zeros(decision.scheduled.shape[1])
    for place in range(len(rows)):
        rows[place] = _row_of(decision.scheduled[0, place], by_id, case)
    return _Turn(rows, decision.scheduled[1])


@rule
def _row_of(request_id: int, by_id: IntArray, case: Case) -> int:
    least, most = 0, len(by_id) - 1
    while least < most:
        middle = (least + most) // 2
        if case.requests[ID, by_id[middle]] < request_id:
            least = middle + 1
        else:
            most = middle
    row: int = by_id[least]
    return row


@lean
def _nobody_can_enter(running: IntArray, case: Case) -> bool:
    """Whether no pass lets anybody in or turns anybody away, as long as those on the device stay, and nobody comes."""
    if len(running) == len(case.rank):
        return True
    for row in range(len(case.rank)):
        if case.requests[DEADLINE_US, row] != 0:
            return False
    return len(running) >= case.limits.max_num_seqs and case.policy.preemption != Preemption.FOR_PRIORITY


@lean
def _go_on_decoding(running: IntArray, outlook: Outlook, case: Case) -> bool:
    """Whether all decode, in one batch, and no answer is complete after that."""
    if not 0 < len(running) <= case.limits.max_num_batched_tokens:
        return False
    num_blocks = 0
    for row in running:
        if not in_decode(case, row) or case.requests[NUM_OUTPUT_TOKENS, row] + 1 >= outlook.stops_after[row]:
            return False
        num_blocks += _num_missing_blocks(row, 1, case)
    return num_blocks <= case.num_free_blocks


@rule
def _num_missing_blocks(row: int, num_tokens: int, case: Case) -> int:
    """That it needs for its next tokens beyond those that it holds."""
    num_needed = blocks_for(case.requests[NUM_COMPUTED_TOKENS, row] + num_tokens, case.limits.block_size)
    num_held: int = case.requests[NUM_BLOCKS, row]
    return max(num_needed - num_held, 0)


@lean
def _num_new_blocks(turn: _Turn, case: Case) -> int:
    num_blocks = 0
    for place in range(len(turn.rows)):
        num_blocks += _num_missing_blocks(turn.rows[place], turn.num_tokens[place], case)
    return num_blocks


@compiled
def _run(turn: _Turn, num_new_blocks: int, outlook: Outlook, progress: Progress, passes: Passes, case: Case) -> int:
    """Carry a pass out in the tables of the case, and record it. Returns when it ends."""
    requests, count = case.requests, passes.counts[NUM_PASSES]
    duration_us = _duration_us(turn, outlook, passes, case)
    end_us = case.now_us + duration_us
    passes.figures[START_US, count] = case.now_us
    passes.figures[NUM_FREE_BLOCKS, count] = case.num_free_blocks - num_new_blocks
    for place in range(len(turn.rows)):
        row, num_tokens = turn.rows[place], turn.num_tokens[place]
        gets_token = num_tokens >= num_lacking_tokens(case, row)
        requests[NUM_BLOCKS, row] += _num_missing_blocks(row, num_tokens, case)
        requests[NUM_COMPUTED_TOKENS, row] += num_tokens
        requests[LAST_RUN_ITERATION, row] = outlook.iteration + count
        case.service[requests[TENANT, row]] += num_tokens
        passes.served[outlook.client[row], count] += num_tokens
        progress.num_run[row] += num_tokens
        if gets_token:
            _note_token(row, end_us, progress, passes, case)
            if requests[NUM_OUTPUT_TOKENS, row] >= outlook.stops_after[row]:
                passes.finished[passes.counts[NUM_FINISHED]] = row
                passes.counts[NUM_FINISHED] += 1
    passes.counts[NUM_PASSES] += 1
    return end_us


@lean
def _duration_us(turn: _Turn, outlook: Outlook, passes: Passes, case: Case) -> int:
    """How long the pass takes, which is what the state's latency model says (`PassCost.time_us` where that is all there
    is); records that and what its batch is made of.
    """
    num_prefill_tokens, num_decode_tokens, num_decodes, num_kv_tokens = 0, 0, 0, 0
    for place in range(len(turn.rows)):
        row, num_tokens = turn.rows[place], turn.num_tokens[place]
        if in_decode(case, row):
            num_decodes += 1
            num_decode_tokens += num_tokens
            num_kv_tokens += case.requests[NUM_COMPUTED_TOKENS, row] + num_tokens
        else:
            num_prefill_tokens += num_tokens
    latency = case.latency
    fixed_us = latency.pass_us + latency.prefill_token_us * num_prefill_tokens + latency.decode_request_us * num_decodes
    duration_us = max(int(np.rint(fixed_us + latency.kv_token_us * num_kv_tokens)), 1)
    if passes.counts[NUM_PASSES] == 0:
        duration_us += outlook.wait_us
    count = passes.counts[NUM_PASSES]
    passes.figures[DURATION_US, count] = duration_us
    passes.figures[NUM_PREFILL_TOKENS, count] = num_prefill_tokens
    passes.figures[NUM_DECODE_TOKENS, count] = num_decode_tokens
    passes.figures[NUM_PREFILLS, count] = len(turn.rows) - num_decodes
    return duration_us


@rule
def _note_token(row: int, end_us: int, progress: Progress, passes: Passes, case: Case) -> None:
    """It has one more token at this time."""
    gaps, gap_us = passes.gaps, end_us - progress.last_token_us[row]
    if case.requests[NUM_OUTPUT_TOKENS, row] == 0:
        progress.first_token_us[row] = end_us
    else:
        last = passes.counts[NUM_GAPS] - 1
        if last >= 0 and gaps[0, last] == gap_us:  # as most of a batch
            gaps[1, last] += 1
        else:
            gaps[0, last + 1] = gap_us
            gaps[1, last + 1] = 1
            passes.counts[NUM_GAPS] += 1
        progress.max_gap_us[row] = max(progress.max_gap_us[row], gap_us)
    case.requests[NUM_OUTPUT_TOKENS, row] += 1
    progress.last_token_us[row] = end_us
