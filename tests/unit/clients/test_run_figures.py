"""The pure parts of `metronome run`: progress, percentiles, the summary, what the tables say."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.bars import bar, counted, seconds, tail
from metronome_cli.errors import CommandError
from metronome_cli.run.board import Board
from metronome_cli.run.live_view import draw, figures
from metronome_cli.run.progress import Phase, RequestProgress, on_event, on_failure, on_row
from metronome_cli.run.summary import percentile, planning_share, summarize
from metronome_cli.run.tables import pass_cells, summary_lines
from metronome_cli.run.workload import WorkloadRequest, build_workload, load_prompts
from metronome_client import Delta, Finished, FinishReason, GenerateOptions, Started, Usage

USAGE = Usage(
    num_prompt_tokens=5,
    num_output_tokens=3,
    num_cached_tokens=0,
    num_preemptions=0,
    queue_time_us=0,
    time_to_first_token_us=0,
    total_time_us=0,
)


def sent(name: str = "story", at: float = 10.0) -> RequestProgress:
    request = WorkloadRequest(name=name, prompt="Once", options=GenerateOptions(max_tokens=3, temperature=0.0))
    return RequestProgress(request=request, sent_at=at)


def answered(*times: float) -> RequestProgress:
    progress = on_event(sent(), Started(request_id="r", num_prompt_tokens=5, max_tokens=3, seed=0), 10.0)
    for time in times:
        progress = on_event(progress, Delta(text=" x", token_ids=(1,)), time)
    return progress


def row(progress: RequestProgress, status: int, *, computed: int, output: int) -> RequestProgress:
    return on_row(progress, status=status, num_computed_tokens=computed, num_output_tokens=output)


def test_the_first_token_is_when_the_first_delta_with_tokens_arrives():
    progress = on_event(answered(), Delta(text="", token_ids=()), 10.2)
    assert progress.time_to_first_token is None

    progress = on_event(progress, Delta(text="x", token_ids=(7,)), 10.5)
    assert progress.time_to_first_token == pytest.approx(0.5)
    assert progress.phase is Phase.DECODE


def test_latencies_between_tokens_are_the_gaps_between_deltas():
    assert answered(10.5, 10.6, 10.8).inter_token_latencies == pytest.approx((0.1, 0.2))
    assert answered(10.5).inter_token_latencies == ()


def test_a_finished_request_is_done_and_stays_so():
    finished = on_event(answered(10.5), Finished(reason=FinishReason.LENGTH, usage=USAGE), 10.6)

    assert finished.phase is Phase.DONE
    assert row(finished, state_pb2.REQUEST_STATUS_RUNNING, computed=5, output=1) is finished


def test_a_failed_request_keeps_the_reason():
    failed = on_failure(answered(10.5), "the queue is full")

    assert (failed.phase, failed.error) == (Phase.FAILED, "the queue is full")


@pytest.mark.parametrize(
    ("status", "computed", "output", "phase"),
    [
        (state_pb2.REQUEST_STATUS_WAITING, 0, 0, Phase.WAITING),
        (state_pb2.REQUEST_STATUS_RUNNING, 2, 0, Phase.PREFILL),
        (state_pb2.REQUEST_STATUS_RUNNING, 5, 1, Phase.DECODE),
        (state_pb2.REQUEST_STATUS_SWAPPED, 5, 1, Phase.SWAPPED),
        (state_pb2.REQUEST_STATUS_RUNNING, 3, 2, Phase.PREFILL),  # evicted by recompute: all is prefilled again
    ],
)
def test_the_books_tell_the_phase(status, computed, output, phase):
    assert row(answered(), status, computed=computed, output=output).phase is phase


def test_a_request_that_was_evicted_is_no_longer_in_prefill():
    decoding = answered(10.5)
    evicted = on_row(
        decoding,
        status=state_pb2.REQUEST_STATUS_WAITING,
        num_computed_tokens=0,
        num_output_tokens=1,
        num_preemptions=1,
    )

    assert evicted.phase is Phase.EVICTED


def test_figures_say_what_they_count():
    assert figures(answered()) == "0/5 in"
    assert figures(row(answered(), state_pb2.REQUEST_STATUS_RUNNING, computed=2, output=0)) == "2/5 in"
    assert figures(answered(10.5)) == "1/3 out"
    again = row(answered(10.5, 10.6, 10.7), state_pb2.REQUEST_STATUS_RUNNING, computed=3, output=3)
    assert figures(again) == "3/7 in"  # the prompt and two of the answer's tokens; the third is the next input


@pytest.mark.parametrize(("number", "words"), [(0, "0 tokens"), (1, "1 token"), (2302, "2,302 tokens")])
def test_one_of_a_thing_is_not_many(number, words):
    assert counted(number, "token") == words


@pytest.mark.parametrize(("width", "height"), [(60, 20), (60, 12), (80, 24), (120, 40)])
def test_every_size_of_terminal_shows_the_passes_and_why_there_are_none(width, height):
    board = Board(model=inference_pb2.GetModelInfoResponse(), started_at=10.0, num_blocks=8)
    board.requests = [answered(10.5) for _ in range(9)]
    board.passes = [executor_pb2.Pass(iteration=7041, num_free_blocks=2)]
    board.planning_failure = "no scheduler answers"
    console = Console(file=io.StringIO(), width=width, color_system=None)

    console.print(draw(board, console, width=width, height=height))

    frame = console.file.getvalue()
    assert frame.count("\n") <= height
    assert "7041" in frame
    assert "no scheduler answers" in frame


def test_where_not_all_answers_fit_those_that_go_on_are_shown():
    board = Board(model=inference_pb2.GetModelInfoResponse(), started_at=10.0, num_blocks=8)
    done = on_event(answered(10.5), Finished(reason=FinishReason.LENGTH, usage=USAGE), 10.6)
    board.requests = [*[done] * 8, on_event(sent("the-last"), Delta(text="x", token_ids=(1,)), 10.5)]
    console = Console(file=io.StringIO(), width=60, color_system=None)

    console.print(draw(board, console, width=60, height=12))

    assert "the-last" in console.file.getvalue()


def test_books_older_than_the_stream_are_ignored():
    decoding = answered(10.5)

    assert row(decoding, state_pb2.REQUEST_STATUS_RUNNING, computed=2, output=0) is decoding


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_a_measured_value_that_the_share_does_not_exceed(values, share):
    found = percentile(values, share)

    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_the_percentile_of_nothing_is_none():
    assert percentile([], 0.5) is None


def test_the_planning_share_is_the_wait_over_the_whole():
    passes = [executor_pb2.Pass(plan_wait_us=10, total_us=100), executor_pb2.Pass(plan_wait_us=0, total_us=300)]

    assert planning_share(passes) == pytest.approx(0.025)
    assert planning_share([]) == 0.0


def test_a_summary_adds_up_requests_and_passes():
    board = Board(model=inference_pb2.GetModelInfoResponse(), started_at=10.0, ended_at=12.0, num_blocks=8)
    board.requests = [
        on_event(answered(10.5, 10.6, 10.8), Finished(reason=FinishReason.LENGTH, usage=USAGE), 10.9),
        on_failure(answered(11.0), "lost"),
    ]
    board.passes = [
        executor_pb2.Pass(
            num_prefill_requests=2,
            num_evicted_swap=1,
            plan_source=executor_pb2.PLAN_SOURCE_DIRECT,
            plan_round_trip_us=900,
            plan_wait_us=50,
            total_us=1000,
        ),
        executor_pb2.Pass(num_evicted_recompute=2, plan_source=executor_pb2.PLAN_SOURCE_SAFE, total_us=1000),
    ]

    summary = summarize(board)

    assert (summary.num_finished, summary.num_requests) == (1, 2)
    assert (summary.num_prompt_tokens, summary.num_output_tokens) == (10, 4)
    assert summary.output_tokens_per_second == pytest.approx(2.0)
    assert (summary.ttft_p50, summary.ttft_p99) == pytest.approx((0.5, 1.0))
    assert (summary.itl_p50, summary.itl_p99) == pytest.approx((0.1, 0.2))
    assert (summary.num_iterations, summary.num_chunks, summary.num_safe_plans) == (2, 2, 1)
    assert (summary.num_evicted_swap, summary.num_evicted_recompute) == (1, 2)
    assert summary.plan_round_trip_p50 == pytest.approx(0.0009)  # a safe plan made no round trip
    lines = dict(summary_lines(summary))
    assert lines["planning"] == "2.50% of the time, round trip p50 0.9 ms"
    assert lines["tokens"] == "10 of prompts, 4 generated"


def test_a_summary_tells_of_cached_tokens_where_there_are_any():
    finished = Finished(reason=FinishReason.LENGTH, usage=replace(USAGE, num_cached_tokens=1024))
    board = Board(model=inference_pb2.GetModelInfoResponse(), started_at=10.0, ended_at=12.0)
    board.requests = [on_event(answered(10.5), finished, 10.9), on_failure(answered(11.0), "lost")]

    assert dict(summary_lines(summarize(board)))["tokens"] == "10 of prompts (1,024 cached), 2 generated"


def test_a_summary_tells_of_drafts_where_there_are_any():
    board = Board(model=inference_pb2.GetModelInfoResponse(), started_at=10.0, ended_at=12.0)
    assert "drafts" not in dict(summary_lines(summarize(board)))
    board.passes = [executor_pb2.Pass(num_draft_tokens=1000, num_accepted_draft_tokens=900), executor_pb2.Pass()] * 2
    assert dict(summary_lines(summarize(board)))["drafts"] == "2,000 verified, 1,800 right"


def test_a_summary_of_nothing_has_no_latencies():
    summary = summarize(Board(model=inference_pb2.GetModelInfoResponse(), started_at=1.0, ended_at=1.0))

    assert summary.output_tokens_per_second == 0.0
    assert dict(summary_lines(summary))["time to first token"] == "p50 none, p99 none"


def test_a_pass_shows_its_batch_and_the_blocks_in_use():
    pass_ = executor_pb2.Pass(
        iteration=7,
        num_prefill_tokens=531,
        num_prefill_requests=2,
        num_decode_tokens=5,
        num_running=7,
        num_free_blocks=2,
        plan_source=executor_pb2.PLAN_SOURCE_OVERLAPPED,
        total_us=87_400,
    )

    cells = pass_cells(pass_, num_blocks=8, bar_width=4)

    assert cells == ("7", "531 in 2", "5", "7", "·", "·", "6/8", "███ ", "overlap", "87")


@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 40))
def test_a_bar_keeps_its_width_and_shows_anything_used(used, total, width):
    drawn = bar(min(used, total), total, width)

    assert len(drawn) == width
    assert (drawn.strip() == "") == (used == 0)
    assert used < total or drawn == "█" * width


def test_a_tail_is_the_end_on_one_line():
    assert tail("one\n two", 20) == "one two"
    assert tail("abcdefgh", 4) == "…fgh"


SPANS = [(900, "0.9 ms"), (87_400, "87 ms"), (999_499, "999 ms"), (999_500, "1.00 s"), (1_240_000, "1.24 s")]


@pytest.mark.parametrize(("us", "words"), SPANS)
def test_spans_read_well(us, words):
    assert seconds(us) == words


def test_the_built_in_workload_is_mixed():
    workload = build_workload(load_prompts(None), None, "run")

    assert len(workload) >= 8
    assert len({request.options.request_id for request in workload}) == len(workload)
    assert all(16 <= request.options.max_tokens <= 128 for request in workload)
    assert 1 <= sum(request.options.temperature > 0 for request in workload) <= 2
    assert all(request.options.seed is not None for request in workload if request.options.temperature > 0)
    assert max(len(request.prompt.split()) for request in workload) > 1_200
    assert not any(request.prompt[-1].isspace() for request in workload)


def test_more_requests_than_prompts_go_round():
    workload = build_workload({"a": "A", "b": "B"}, 5, "run")

    assert [request.name for request in workload] == ["a", "b", "a-2", "b-2", "a-3"]


def test_no_prompts_is_an_error(tmp_path):
    with pytest.raises(CommandError, match=r"there are no prompts; give a --prompts-dir"):
        build_workload(load_prompts(tmp_path), None, "run")
