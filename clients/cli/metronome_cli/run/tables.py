"""What the views draw alike: the cells of a pass, an answer in full, the summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from metronome.executor.v1 import executor_pb2
from metronome_cli.bars import bar, counted, seconds, tail
from metronome_cli.run.progress import Phase, RequestProgress
from metronome_cli.run.summary import Summary

BAR_HEADING = ""
PASS_HEADINGS = ("iter", "prefill", "decode", "run", "wait", "swap", "blocks", BAR_HEADING, "plan", "ms")
LEFT_ALIGNED = (BAR_HEADING, "plan")
PROMPT_TAIL_WIDTH = 72
_WHITE_SPACE = re.compile(r"\s+")

PHASE_STYLES = {
    Phase.WAITING: "dim",
    Phase.PREFILL: "magenta",
    Phase.DECODE: "green",
    Phase.SWAPPED: "yellow",
    Phase.EVICTED: "yellow",
    Phase.DONE: "bold green",
    Phase.FAILED: "bold red",
}
_PLAN_SOURCES = {
    executor_pb2.PLAN_SOURCE_OVERLAPPED: ("overlap", "green"),
    executor_pb2.PLAN_SOURCE_DIRECT: ("direct", "cyan"),
    executor_pb2.PLAN_SOURCE_SAFE: ("safe", "yellow"),
}


def pass_cells(pass_: executor_pb2.Pass, num_blocks: int, bar_width: int) -> tuple[str, ...]:
    """Write one pass under `PASS_HEADINGS`; "531 in 2" are 531 prompt tokens in 2 chunks."""
    used = num_blocks - pass_.num_free_blocks
    chunks = f" in {pass_.num_prefill_requests}" if pass_.num_prefill_requests > 1 else ""
    return (
        str(pass_.iteration),
        f"{pass_.num_prefill_tokens}{chunks}" if pass_.num_prefill_tokens else "·",
        str(pass_.num_decode_tokens or "·"),
        str(pass_.num_running or "·"),
        str(pass_.num_waiting or "·"),
        str(pass_.num_swapped or "·"),
        f"{used}/{num_blocks}",
        bar(used, num_blocks, bar_width),
        plan_source(pass_)[0],
        f"{pass_.total_us / 1000:.0f}",
    )


def pass_styles(pass_: executor_pb2.Pass) -> tuple[str, ...]:
    """Style the cells of a pass."""
    return ("dim", "magenta", "green", "", "dim", "yellow", "", "blue on grey19", plan_source(pass_)[1], "")


def plan_source(pass_: executor_pb2.Pass) -> tuple[str, str]:
    """Say where the plan came from, and in which style to write it."""
    return _PLAN_SOURCES.get(pass_.plan_source, (str(pass_.plan_source), ""))


def text_so_far(progress: RequestProgress) -> Text:
    """Write the end of the prompt, faint, and the answer after it, on one line; or what went wrong."""
    if progress.phase is Phase.FAILED:
        return Text(progress.error, style="red")
    prompt = tail(progress.request.prompt, PROMPT_TAIL_WIDTH)
    return Text.assemble((prompt, "dim"), _WHITE_SPACE.sub(" ", progress.text))


def answer_facts(progress: RequestProgress) -> str:
    """Say what a request took: "44 prompt tokens, 96 generated, first after 812 ms, greedy"."""
    if progress.phase is Phase.FAILED:
        return progress.error
    options = progress.request.options
    choice = "greedy" if not options.temperature else f"temperature {options.temperature:g}, seed {options.seed}"
    ttft = progress.time_to_first_token
    first = f", first after {seconds(ttft * 1e6)}" if ttft is not None else ""
    prompt = counted(progress.num_prompt_tokens, "prompt token")
    return f"{prompt}, {progress.num_output_tokens} generated{first}, {choice}"


def answers_in_full(requests: Sequence[RequestProgress]) -> RenderableType:
    """Write every answer, each under a line of facts."""
    parts: list[RenderableType] = []
    parts.append("")
    for progress in requests:
        mark = Text("✓ " if progress.phase is Phase.DONE else "✗ ", style=PHASE_STYLES[progress.phase])
        parts.append(
            Text.assemble(
                mark,
                (progress.request.name, "bold"),
                ("  " + answer_facts(progress), "dim"),
                no_wrap=True,
                overflow="ignore",
            )
        )
        last_line = tail(progress.request.prompt.rpartition("\n")[2], PROMPT_TAIL_WIDTH)
        parts.append(Padding(Text.assemble((last_line, "dim"), progress.text.rstrip()), (0, 0, 1, 2), expand=False))
    return Group(*parts)


def summary_panel(summary: Summary) -> RenderableType:
    """Frame the figures of a run, a line a topic."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for topic, figures in summary_lines(summary):
        grid.add_row(topic, figures)
    return Panel(grid, title="summary", box=box.ROUNDED, expand=False)


def summary_lines(summary: Summary) -> list[tuple[str, str]]:
    """Give the topics of a summary and their figures in words."""
    drafts = f"{summary.num_draft_tokens:,} verified, {summary.num_accepted_draft_tokens:,} right"
    cached = f" ({summary.num_cached_tokens:,} cached)" if summary.num_cached_tokens else ""
    return [
        ("requests", f"{summary.num_finished} of {summary.num_requests} finished in {summary.elapsed:.1f} s"),
        ("tokens", f"{summary.num_prompt_tokens:,} of prompts{cached}, {summary.num_output_tokens:,} generated"),
        ("throughput", f"{summary.output_tokens_per_second:.1f} output tokens/s"),
        ("time to first token", f"p50 {_span(summary.ttft_p50)}, p99 {_span(summary.ttft_p99)}"),
        ("inter-token latency", f"p50 {_span(summary.itl_p50)}, p99 {_span(summary.itl_p99)}"),
        ("iterations", f"{summary.num_iterations:,}, with {summary.num_chunks:,} prefill chunks"),
        *([("drafts", drafts)] if summary.num_draft_tokens else []),
        ("evictions", f"{summary.num_evicted_swap} by swap, {summary.num_evicted_recompute} by recompute"),
        ("planning", f"{summary.planning_share:.2%} of the time, round trip p50 {_span(summary.plan_round_trip_p50)}"),
        ("safe plans", str(summary.num_safe_plans)),
    ]


def _span(value: float | None) -> str:
    return "none" if value is None else seconds(value * 1e6)
