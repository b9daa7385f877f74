"""The screen: what the executor is, the batch of its latest passes as a chart, figures, and its requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.bars import bar, counted, seconds
from metronome_cli.books_view import request_table
from metronome_cli.notices import planning_failure_in_words
from metronome_cli.run.tables import plan_source
from metronome_cli.top.chart import stacked_columns
from metronome_cli.top.history import Figures, History

DECODE, PREFILL = "green", "magenta"
_AXIS_WIDTH = 7
_BAR_WIDTH = 24
_MIN_CHART_HEIGHT, _MAX_CHART_HEIGHT = 3, 10
_FIGURE_LINES = 6
_FIXED_HEIGHT = (
    1 + 2 + 1 + _FIGURE_LINES + 1
)  # headline, borders and legend of the chart, figures, headings of requests
_STATUSES = (
    (state_pb2.REQUEST_STATUS_RUNNING, "running"),
    (state_pb2.REQUEST_STATUS_WAITING, "waiting"),
    (state_pb2.REQUEST_STATUS_SWAPPED, "swapped"),
)
_SOURCES = (
    executor_pb2.PLAN_SOURCE_OVERLAPPED,
    executor_pb2.PLAN_SOURCE_DIRECT,
    executor_pb2.PLAN_SOURCE_SAFE,
)


def draw(history: History, model: inference_pb2.GetModelInfoResponse, *, width: int, height: int) -> RenderableType:
    """Fit it into a terminal: the chart grows to ten lines, and the requests have the rest."""
    banner = _banner(history)
    room = max(0, height - _FIXED_HEIGHT - len(banner))
    chart_height = max(_MIN_CHART_HEIGHT, min(_MAX_CHART_HEIGHT, room // 2))
    num_requests = max(0, room - chart_height)
    return Group(
        _headline(history, model),
        *banner,
        _chart(list(history.passes), width=width, height=chart_height),
        _figures(history, history.figures()),
        *([_requests(history, num_requests)] if num_requests else []),
    )


def _headline(history: History, model: inference_pb2.GetModelInfoResponse) -> Text:
    executor = history.executor
    return Text.assemble(
        (" metronome top ", "bold reverse"),
        f" {executor.executor_id}  {model.model}, {model.dtype} on {model.device}",
        (f"   iteration {max(0, executor.iteration - 1):,}", "dim"),
        ("   draining" if executor.draining else "", "yellow"),
        ("   q: quit", "dim"),
        no_wrap=True,
        overflow="ellipsis",
    )


def _banner(history: History) -> list[Text]:
    failure = planning_failure_in_words(history.books.planning_failure if history.books is not None else "")
    return [Text(f" {failure}", style="bold yellow", no_wrap=True, overflow="ellipsis")] if failure else []


def _chart(passes: Sequence[executor_pb2.Pass], *, width: int, height: int) -> RenderableType:
    """Draw a column a pass."""
    columns = max(1, width - 4 - _AXIS_WIDTH)
    shown = passes[-columns:]
    batches = [(one.num_decode_tokens, one.num_prefill_tokens) for one in shown]
    top = max((decode + prefill for decode, prefill in batches), default=0)
    lines = stacked_columns(batches, width=columns, height=height, top=top, colours=(DECODE, PREFILL))
    marks = {0: f"{top:,}", height // 2: f"{top // 4:,}", height - 1: "0"}
    rows = [
        Text.assemble((f"{marks.get(line, ''):>{_AXIS_WIDTH - 2}} │", "dim"), text) for line, text in enumerate(lines)
    ]
    legend = Text.assemble(
        ("█", DECODE), " decode  ", ("█", PREFILL), " prefill tokens of a pass, the newest at the right"
    )
    return Panel(Group(*rows, legend), title="batch", box=box.ROUNDED, padding=(0, 1))


def _figures(history: History, figures: Figures) -> RenderableType:
    executor, limits = history.executor, history.executor.limits
    num_with = Counter(executor.requests.status)
    counters = history.books.counters if history.books is not None else executor_pb2.Counters()
    looked_up = counters.num_prefix_query_tokens
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(no_wrap=True)
    statuses = ", ".join(f"{num_with[status]:,} {word}" for status, word in _STATUSES)
    grid.add_row("requests", statuses)
    grid.add_row("tokens/s", f"{figures.decode_rate:,.1f} decode, {figures.prefill_rate:,.1f} prefill")
    grid.add_row(
        "passes",
        f"p50 {seconds(figures.pass_p50_us)}, p99 {seconds(figures.pass_p99_us)}, forward "
        f"{figures.forward_share:.0%}, waits for plans {figures.plan_wait_share:.1%}",
    )
    grid.add_row("plans", _plans(figures))
    grid.add_row("blocks", _blocks(limits.num_blocks - executor.num_free_blocks, limits.num_blocks, "green"))
    swap = _blocks(limits.num_swap_blocks - executor.num_free_swap_blocks, limits.num_swap_blocks, "yellow")
    found = f", {counters.num_prefix_hit_tokens / looked_up:.0%} of prompts' tokens cached" if looked_up else ""
    grid.add_row("swap", Text.assemble(swap, f"   {counted(figures.num_evicted, 'eviction')} in 10 s{found}"))
    return grid


def _plans(figures: Figures) -> Text:
    text = Text()
    for source in _SOURCES:
        word, style = plan_source(executor_pb2.Pass(plan_source=source))
        if count := figures.num_by_source[source]:
            text.append(f"{count:,} {word}  ", style)
    return text or Text("none", style="dim")


def _blocks(used: int, total: int, colour: str) -> Text:
    return Text.assemble((bar(used, total, _BAR_WIDTH), f"{colour} on grey23"), f" {used:,} of {total:,}")


def _requests(history: History, num_rows: int) -> RenderableType:
    books = history.books
    names = {name.id: name.request_id for name in books.request_names} if books is not None else {}
    now_us = books.state.now_us if books is not None else 0
    return request_table(history.executor.requests, names, now_us, max_rows=num_rows)
