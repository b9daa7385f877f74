"""What the Python client has for executors of one's own: checks, streams, books, and plans that are not trusted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import plan_pb2, state_pb2
from metronome_client import request_table
from metronome_client.executing import Books, Request, Wanted, checked, plan_fault, safe_plan
from metronome_client.serving import RefusalError

LIMITS = state_pb2.ExecutorLimits(
    max_num_batched_tokens=32,
    max_num_seqs=3,
    block_size=16,
    num_blocks=8,
    num_swap_blocks=2,
    max_model_len=256,
    max_num_waiting=2,
)
SWAP, RECOMPUTE = plan_pb2.EVICT_MODE_SWAP, plan_pb2.EVICT_MODE_RECOMPUTE


def wanted(prompt: str = "hello", *, offered: tuple[str, ...] = (), **fields: Any) -> Wanted:
    message = inference_pb2.GenerateRequest(**({"text": prompt} | fields))
    return checked(message, LIMITS, tokenize=str.encode, vocab_size=256, offered=offered)


# What is looked at


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"text": ""}, "EMPTY_PROMPT", "text"),
        ({"token_ids": inference_pb2.TokenIds()}, "EMPTY_PROMPT", "token_ids"),
        ({"token_ids": {"ids": [1, 256]}}, "UNKNOWN_TOKEN", "token_ids.ids[1]"),
        ({"messages": {"messages": [{"role": "user"}]}}, "NO_CHAT_TEMPLATE", ""),
        ({"sampling": {"temperature": float("nan")}}, "OUT_OF_RANGE", "sampling.temperature"),
        ({"sampling": {"top_p": 0}}, "OUT_OF_RANGE", "sampling.top_p"),
        ({"sampling": {"presence_penalty": -3}}, "OUT_OF_RANGE", "sampling.presence_penalty"),
        ({"stopping": {"max_tokens": 0}}, "OUT_OF_RANGE", "stopping.max_tokens"),
        ({"stopping": {"stop": ["x"] * 17}}, "OUT_OF_RANGE", "stopping.stop"),
        ({"stopping": {"stop": ["x", ""]}}, "OUT_OF_RANGE", "stopping.stop[1]"),
        ({"tenant": "ä" * 129}, "OUT_OF_RANGE", "tenant"),
        ({"stopping": {"max_tokens": 252}}, "EXCEEDS_MODEL_LEN", ""),
        ({"stopping": {"max_tokens": 125}}, "EXCEEDS_KV_CACHE", ""),
        ({"sampling": {"n": 2}}, "NOT_OFFERED", ""),
        ({"sampling": {"logit_bias": {1: 2.0}}}, "NOT_OFFERED", ""),
        ({"output": {"logprobs": 0}}, "NOT_OFFERED", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_at_fault_is_refused_by_name(fields: dict[str, Any], reason: str, field: str) -> None:
    with pytest.raises(RefusalError) as caught:
        wanted(**fields)
    assert (caught.value.reason, caught.value.field) == (reason, field)


def test_case_3_the_last_token_needs_no_place() -> None:
    assert wanted(stopping={"max_tokens": 124}).max_tokens == 124  # 5 + 124 - 1 tokens fill 8 blocks of 16
    assert wanted().max_tokens == 124


def test_case_5_zero_is_not_unset_and_what_is_in_force_is_told() -> None:
    unset, zero = wanted().sampling, wanted(sampling={"temperature": 0, "seed": 0}).sampling
    assert (unset.temperature, unset.top_p, unset.n, unset.HasField("seed")) == (1, 1, 1, True)
    assert (zero.temperature, zero.seed) == (0, 0)
    assert wanted(sampling={"temperature": 0}).is_greedy
    assert not wanted().is_greedy


def test_an_executor_may_offer_more() -> None:
    assert wanted(sampling={"logit_bias": {1: 2.0}}, offered=("sampling.logit_bias",)).sampling.logit_bias == {1: 2.0}


# What is streamed


def told(request: Request) -> tuple[list[str], inference_pb2.Finished]:
    """The texts of the deltas of a request that has ended, and how it ended."""

    async def read() -> list[inference_pb2.GenerateResponse]:
        return [event async for event in request.events()]

    events = asyncio.run(read())
    assert [event.sequence for event in events] == list(range(len(events)))
    assert events[0].HasField("started")
    assert events[-1].HasField("finished")
    return [event.delta.text for event in events[1:-1]], events[-1].finished


@pytest.mark.parametrize(
    ("stop", "texts", "matched", "num_tokens"),
    [
        (["DEFGHIJ"], ["AB", "C", "", "", "", ""], "DEFGHIJ", 6),
        (["DEFGX"], ["AB", "C", "", "", "DEFGHI", "J"], "", 6),
        (["BCX", "J"], ["A", "", "BCDEF", "G", "HI", ""], "J", 6),
        (["CD", "CDE"], ["AB", "", ""], "CD", 3),
    ],
    ids=["across tokens", "held text is sent", "one of two", "the earliest"],
)
def test_case_42_a_stop_string_over_several_tokens(
    stop: list[str], texts: list[str], matched: str, num_tokens: int
) -> None:
    request = Request(wanted(stopping={"stop": stop, "max_tokens": 6}))
    for token, text in enumerate(["AB", "C", "DEF", "G", "HI", "J"]):
        request.append(token, text)
    sent, finished = told(request)
    assert sent == texts
    assert (finished.matched_stop, finished.usage.num_output_tokens) == (matched, num_tokens)
    is_stop = finished.finish_reason == inference_pb2.FINISH_REASON_STOP
    assert is_stop == bool(matched)


def test_text_is_not_searched_before_the_least_tokens_and_an_end_token_is_not_sent() -> None:
    request = Request(
        wanted(stopping={"stop": ["a"], "min_tokens": 2, "max_tokens": 9}, offered=("stopping.min_tokens",))
    )
    for text in ("a", "b", "c"):
        request.append(1, text)
    request.append(2, "</s>", is_end=True)
    request.append(3, "too late")
    sent, finished = told(request)
    assert sent == ["a", "b", "c", ""]
    assert (finished.finish_reason, finished.matched_stop) == (inference_pb2.FINISH_REASON_STOP, "")


def test_a_refused_request_raises_what_it_was_refused_with_and_the_first_end_counts() -> None:
    books = books_with(Request(wanted()))
    books.cancel(next(iter(books.rows())).name)
    with pytest.raises(RefusalError, match="cancelled") as caught:
        told(next(iter(books.rows())))
    assert caught.value.reason == "CANCELLED"


# What the books do


class WatchedBooks(Books):
    """Shows its rows."""

    def rows(self) -> list[Request]:
        return list(self._requests.values())


def books_with(*requests: Request) -> WatchedBooks:
    books = WatchedBooks("e", LIMITS)
    for request in requests:
        books.add(request)
    return books


def plan_for(books: Books, scheduled: dict[int, int], **lists: Any) -> plan_pb2.ExecutorPlan:
    """A plan that can be carried out."""
    state = books.state()
    table = plan_pb2.ScheduledTable(id=scheduled, num_tokens=scheduled.values())
    plan = plan_pb2.ExecutorPlan(executor_id="e", iteration=state.iteration, scheduled=table, **lists)
    assert plan_fault(state, plan) is None
    return plan


def run(books: Books, scheduled: dict[int, int], **lists: Any) -> list[Request]:
    """Those whose next token is due after the pass."""
    work = books.begin(plan_for(books, scheduled, **lists))
    books.commit(work)
    return [request for request, _ in work.chunks if request.is_computed]


def test_a_request_goes_through_the_books_to_its_end() -> None:
    request = Request(wanted("x" * 20, stopping={"max_tokens": 2}))
    books = books_with(request)
    assert run(books, {1: 16}, admit={"id": [1]}) == []
    assert books.state().num_free_blocks == 7
    assert run(books, {1: 4}) == [request]
    request.append(1, "a")
    assert run(books, {1: 1}) == [request]
    request.append(2, "b")
    assert (request.has_ended, books.state().iteration, books.state().num_free_blocks) == (True, 4, 6)
    books.add(Request(wanted()))
    asyncio.run(books.somebody())  # lets go of the one that has ended
    assert (list(books.state().requests.id), books.state().num_free_blocks) == ([2], 8)
    assert (books.counters.num_finished, books.counters.num_prefill_tokens) == (1, 20)
    assert books.counters.num_output_tokens == 2


def test_an_eviction_keeps_the_output_and_gives_the_blocks_back() -> None:
    one, two, three = (Request(wanted("x" * 10)) for _ in range(3))
    books = books_with(one, two)
    run(books, {1: 10, 2: 10}, admit={"id": [1, 2]})
    books.add(three)
    one.append(1, "a")
    work = books.begin(plan_for(books, {}, evict={"id": [1, 2], "mode": [SWAP, RECOMPUTE]}))
    assert work.swap_out == (one,)
    state = books.state()
    assert (state.num_free_blocks, state.num_free_swap_blocks) == (8, 1)
    assert list(state.requests.num_computed_tokens) == [10, 0, 0]
    assert list(state.requests.num_output_tokens) == [1, 0, 0]
    work = books.begin(plan_for(books, {1: 1, 3: 10}, resume={"id": [1]}, admit={"id": [3]}))
    assert work.swap_in == (one,)
    assert list(books.state().requests.times_overtaken) == [0, 1, 0]
    assert (books.counters.num_evicted_swap, books.counters.num_evicted_recompute) == (1, 1)


def test_a_request_that_is_rejected_is_told_when_to_come_again() -> None:
    request = Request(wanted())
    books = books_with(request)
    table = {"id": [1], "reason": [plan_pb2.REASON_REJECTED_QUEUE_FULL], "estimated_wait_us": [2_500_000]}
    run(books, {}, reject=table)
    with pytest.raises(RefusalError) as caught:
        told(request)
    assert (caught.value.reason, caught.value.retry_delay_s) == ("REJECTED_BY_SCHEDULER", 2.5)
    assert caught.value.metadata == {"scheduler_reason": "REJECTED_QUEUE_FULL"}


def test_who_may_not_enter_leaves_nothing_behind() -> None:
    named = {"request_id": "r"}
    books = books_with(Request(wanted(**named)))
    with pytest.raises(RefusalError, match="here already"):
        books.add(Request(wanted(**named)))
    books.add(Request(wanted()))
    with pytest.raises(RefusalError) as caught:
        books.add(Request(wanted()))
    assert (caught.value.reason, caught.value.retry_delay_s) == ("QUEUE_FULL", 1.0)
    books.cancel("r")
    books.add(Request(wanted(**named)))  # its name is free again
    assert books.counters.num_accepted == 3
    with pytest.raises(RefusalError, match="no request 'other'"):
        books.cancel("other")


def test_draining_takes_nobody_new_and_ends_with_the_last() -> None:
    async def drain() -> None:
        request = Request(wanted())
        books = books_with(request)
        drained = asyncio.create_task(books.drained())
        await asyncio.sleep(0)
        with pytest.raises(RefusalError) as caught:
            books.add(Request(wanted()))
        assert (caught.value.reason, caught.value.retry_delay_s) == ("DRAINING", 1.0)
        assert not drained.done()
        books.leave(request, 0.0)
        await drained
        assert books.counters.num_expired == 1

    asyncio.run(drain())


# What is not trusted

# 1 decodes and needs a block for its next token, 2 is in its prompt, 3 waits, 4 is swapped.
STATE = state_pb2.ExecutorState(
    executor_id="e",
    iteration=7,
    limits=LIMITS,
    num_free_blocks=5,
    num_free_swap_blocks=1,
    requests=request_table(
        id=[1, 2, 3, 4],
        status=["RUNNING", "RUNNING", "WAITING", "SWAPPED"],
        num_prompt_tokens=[31, 40, 20, 10],
        num_output_tokens=[2, 0, 0, 3],
        num_computed_tokens=[32, 16, 0, 12],
        num_blocks=[2, 1, 0, 1],
    ),
)


def fault(*, free: int = 5, scheduled: dict[int, int] | None = None, **fields: Any) -> str | None:
    state = state_pb2.ExecutorState()
    state.CopyFrom(STATE)
    state.num_free_blocks = free
    scheduled = scheduled or {}
    table = plan_pb2.ScheduledTable(id=scheduled, num_tokens=scheduled.values())
    content = {"executor_id": "e", "iteration": 7, "scheduled": table} | fields
    return plan_fault(state, plan_pb2.ExecutorPlan(**content))


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"scheduled": {1: 1, 2: 24}},
        {"scheduled": {3: 20}, "admit": {"id": [3]}},
        {"scheduled": {4: 1}, "resume": {"id": [4]}},
        {"scheduled": {2: 24}, "evict": {"id": [1], "mode": [RECOMPUTE]}},
        {"evict": {"id": [2], "mode": [SWAP]}},
        {"reject": {"id": [3], "reason": [plan_pb2.REASON_REJECTED_QUEUE_FULL]}},
        {"scheduled": {1: 1}, "evict": {"id": [2], "mode": [RECOMPUTE]}, "free": 0},
    ],
    ids=["nobody", "decode and chunk", "admit", "resume", "recompute", "swap", "reject", "evict to make room"],
)
def test_a_good_plan_can_be_carried_out(plan: dict[str, Any]) -> None:
    assert fault(**plan) is None


@pytest.mark.parametrize(
    "plan",
    [
        {"iteration": 6},
        {"executor_id": "f"},
        {"scheduled": {9: 1}},
        {"scheduled": {3: 1}},
        {"scheduled": {1: 2}},
        {"scheduled": {1: 0}},
        {"scheduled": plan_pb2.ScheduledTable(id=[1, 1], num_tokens=[1, 1])},
        {"scheduled": {1: 1}, "evict": {"id": [1], "mode": [RECOMPUTE]}},
        {"admit": {"id": [3]}, "reject": {"id": [3], "reason": [52]}},
        {"scheduled": {1: 1}, "admit": {"id": [1]}},
        {"scheduled": {3: 1}, "resume": {"id": [3]}},
        {"evict": {"id": [3], "mode": [RECOMPUTE]}},
        {"evict": {"id": [1], "mode": [0]}},
        {"evict": {"id": [1], "mode": []}},
        {"scheduled": {2: 24, 3: 20}, "admit": {"id": [3]}},
        {"scheduled": {1: 1, 3: 1, 4: 1}, "admit": {"id": [3]}, "resume": {"id": [4]}},
        {"evict": {"id": [1], "mode": [SWAP]}},
        {"scheduled": {1: 1}, "free": 0},
    ],
    ids=[
        *("stale", "another's", "a stranger", "who waits", "too many tokens", "no token", "twice", "evicted and run"),
        *("admitted and rejected", "admits who runs", "resumes who waits", "evicts who waits", "evicts to nowhere"),
        *("uneven", "over the budget", "over the places", "over swap space", "over the blocks"),
    ],
)
def test_a_bad_plan_is_refused(plan: dict[str, Any]) -> None:
    if isinstance(plan.get("scheduled"), plan_pb2.ScheduledTable):
        content = {"executor_id": "e", "iteration": 7} | plan
        assert plan_fault(STATE, plan_pb2.ExecutorPlan(**content)) is not None
    else:
        assert fault(**plan) is not None


def test_a_safe_plan_runs_who_began_as_far_as_blocks_reach() -> None:
    plan = safe_plan(STATE)
    assert dict(zip(plan.scheduled.id, plan.scheduled.num_tokens, strict=True)) == {1: 1, 2: 24, 4: 1}
    assert (list(plan.admit.id), list(plan.resume.id)) == ([], [4])
    assert plan_fault(STATE, plan) is None


def test_a_safe_plan_makes_room_where_nobody_could_go_on() -> None:
    state = state_pb2.ExecutorState(
        executor_id="e",
        iteration=1,
        limits=LIMITS,
        num_free_blocks=0,
        requests=request_table(
            id=[1, 2],
            status=["RUNNING", "RUNNING"],
            num_prompt_tokens=[63, 63],
            num_output_tokens=[2, 2],
            num_computed_tokens=[64, 64],
            num_blocks=[4, 4],
        ),
    )
    plan = safe_plan(state)
    assert (list(plan.evict.id), list(plan.scheduled.id)) == ([2], [1])
    assert plan_fault(state, plan) is None
