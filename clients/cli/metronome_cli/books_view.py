"""An executor's books as a person reads them: sizes, the blocks as bars, the table of requests, the counters."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_cli.bars import bar, counted, seconds
from metronome_cli.columns import at
from metronome_cli.notices import planning_failure_in_words

_STATUS: Mapping[int, tuple[str, str]] = {
    state_pb2.REQUEST_STATUS_WAITING: ("waiting", "dim"),
    state_pb2.REQUEST_STATUS_RUNNING: ("running", "green"),
    state_pb2.REQUEST_STATUS_SWAPPED: ("swapped", "yellow"),
    state_pb2.REQUEST_STATUS_LOADING: ("loading", "cyan"),
}
_COUNTERS = (
    ("iterations", (("num_iterations", ""),)),
    (
        "requests",
        (
            ("num_accepted", "accepted"),
            ("num_finished", "finished"),
            ("num_cancelled", "cancelled"),
            ("num_expired", "expired"),
            ("num_rejected", "rejected"),
            ("num_failed", "failed"),
        ),
    ),
    (
        "tokens",
        (
            ("num_prefill_tokens", "in prefill"),
            ("num_output_tokens", "generated"),
            ("num_draft_tokens", "drafts verified"),
            ("num_accepted_draft_tokens", "of them right"),
        ),
    ),
    ("prefix cache", (("num_prefix_hit_tokens", "tokens found"), ("num_prefix_query_tokens", "looked up"))),
    (
        "evictions",
        (
            ("num_evicted_swap", "by swap"),
            ("num_evicted_recompute", "by recompute"),
            ("num_swap_failures", "copies failed"),
        ),
    ),
    (
        "plans",
        (("num_safe_plans", "safe"), ("num_refused_plans", "refused"), ("num_plan_failures", "calls failed")),
    ),
)
_BAR_WIDTH = 32


def books_view(books: executor_pb2.GetStateResponse) -> RenderableType:
    """Draw the books of every executor of the message (an executor's own message has one: itself)."""
    names = {name.id: name.request_id for name in books.request_names}
    now_us = books.state.now_us
    executors = [_executor_view(executor, names, now_us) for executor in books.state.executors]
    failure = planning_failure_in_words(books.planning_failure)
    return Group(*executors, *([Text(failure, style="yellow")] if failure else []), _counters(books.counters))


def _executor_view(executor: state_pb2.ExecutorState, names: dict[int, str], now_us: int) -> RenderableType:
    limits = executor.limits
    title = Text.assemble((executor.executor_id, "bold"), f"  iteration {executor.iteration:,}")
    if executor.draining:
        title.append("  draining", style="yellow")
    sizes = Table.grid(padding=(0, 2))
    sizes.add_row(
        Text("batch", style="dim"),
        f"{counted(limits.max_num_batched_tokens, 'token')}, {counted(limits.max_num_seqs, 'request')}",
    )
    sizes.add_row(Text("length", style="dim"), f"{counted(limits.max_model_len, 'token')} a request")
    sizes.add_row(Text("blocks", style="dim"), _blocks(executor.num_free_blocks, limits.num_blocks, limits.block_size))
    if limits.num_swap_blocks:
        swap = _blocks(executor.num_free_swap_blocks, limits.num_swap_blocks, limits.block_size)
        sizes.add_row(Text("swap", style="dim"), swap)
    return Group(title, sizes, request_table(executor.requests, names, now_us))


def _blocks(num_free: int, num_blocks: int, block_size: int) -> Text:
    used = num_blocks - num_free
    figures = f" {used:,} of {num_blocks:,} used, {counted(block_size, 'token')} each"
    return Text.assemble((bar(used, num_blocks, _BAR_WIDTH), "green on grey23"), figures)


def request_table(
    requests: state_pb2.RequestTable, names: dict[int, str], now_us: int, *, max_rows: int | None = None
) -> RenderableType:
    """Draw the requests in the order of their arrival, the first `max_rows` of them."""
    if not requests.id:
        return Text("no requests", style="dim")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("id", justify="right")
    table.add_column("request")
    table.add_column("status")
    for heading in ("age", "prompt", "computed", "output", "blocks", "evicted"):
        table.add_column(heading, justify="right")
    rows = sorted(range(len(requests.id)), key=lambda row: (at(requests.arrival_time_us, row), at(requests.id, row)))
    for row in rows[:max_rows]:
        status, style = _STATUS.get(at(requests.status, row), (str(at(requests.status, row)), ""))
        limit = at(requests.max_output_tokens, row)
        output = f"{at(requests.num_output_tokens, row):,}" + (f"/{limit:,}" if limit else "")
        table.add_row(
            str(at(requests.id, row)),
            names.get(at(requests.id, row), ""),
            Text(status, style=style),
            seconds(max(0, now_us - at(requests.arrival_time_us, row))),
            f"{at(requests.num_prompt_tokens, row):,}",
            f"{at(requests.num_computed_tokens, row):,}",
            output,
            str(at(requests.num_blocks, row)),
            str(at(requests.num_preemptions, row)),
        )
    return table


def _counters(counters: executor_pb2.Counters) -> RenderableType:
    """Draw a line a topic: "tokens   12,204 in prefill, 731 generated".

    Leaves out what never happened, but for a topic's first.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    for topic, fields in _COUNTERS:
        values = [(getattr(counters, field), words) for field, words in fields]
        shown = [f"{value:,} {words}".strip() for row, (value, words) in enumerate(values) if value or row == 0]
        grid.add_row(topic, ", ".join(shown))
    return grid
