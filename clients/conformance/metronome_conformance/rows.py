"""A request of a state as the kit's rules look at it: one row of the columns, with what follows from it.

Written from the comments of state.proto alone, so that it can judge any scheduler and any executor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metronome.scheduler.v1 import state_pb2

WAITING = state_pb2.REQUEST_STATUS_WAITING
RUNNING = state_pb2.REQUEST_STATUS_RUNNING
SWAPPED = state_pb2.REQUEST_STATUS_SWAPPED
LOADING = state_pb2.REQUEST_STATUS_LOADING

COLUMNS = tuple(field.name for field in state_pb2.RequestTable.DESCRIPTOR.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The columns of one request, by their names."""

    id: int
    status: int
    arrival_time_us: int
    priority: int
    tenant: int
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    max_output_tokens: int
    expected_output_tokens: int
    num_draft_tokens: int
    deadline_us: int
    num_blocks: int
    num_shared_blocks: int
    num_preemptions: int
    last_run_iteration: int
    times_overtaken: int
    next_block_hash: int
    cached_prefix: int

    @property
    def order(self) -> tuple[int, int]:
        """The order of arrival: ties go by id."""
        return self.arrival_time_us, self.id

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_lacking(self) -> int:
        return self.num_tokens - self.num_computed_tokens

    @property
    def in_decode(self) -> bool:
        return self.num_output_tokens > 0 and self.num_lacking == 1

    @property
    def started(self) -> bool:
        """Whether it ran before, so that it comes before those that never did."""
        return self.status == SWAPPED or self.num_preemptions > 0

    @property
    def is_on_device(self) -> bool:
        return self.status in (RUNNING, LOADING)

    def most_tokens(self, chunk_size: int) -> int:
        """What it may run in one pass."""
        return 1 + self.num_draft_tokens if self.in_decode else min(self.num_lacking, chunk_size)

    def blocks_for(self, num_tokens: int, block_size: int) -> int:
        """Free blocks that computing so many tokens takes up."""
        needed = -(-(self.num_computed_tokens + num_tokens) // block_size)
        if self.is_on_device:
            return max(needed - self.num_blocks, 0)
        held = 0 if self.status == SWAPPED else self.num_shared_blocks
        return max(needed, self.num_blocks) - held

    def longest(self) -> int:
        """Tokens of prompt and output that it may come to; at least one more than it has."""
        return self.num_prompt_tokens + max(self.max_output_tokens, self.num_output_tokens + 1)

    def can_fit(self, limits: state_pb2.ExecutorLimits) -> bool:
        """Whether an empty executor could finish it: the newest token needs no block."""
        blocks = -(-(self.longest() - 1) // limits.block_size)
        return blocks <= limits.num_blocks and self.longest() <= limits.max_model_len


def reused_prefixes(state: state_pb2.ExecutorState, row: Row) -> dict[int, int]:
    """The cached prefixes in free blocks that one that waits would reuse, each with the blocks that it adds.

    Raises ValueError for one that is not there, or does not stand behind the one that it continues.
    """
    table, reused, prefix = state.cached_prefixes, dict[int, int](), row.cached_prefix
    while prefix and row.status == WAITING:
        if not 0 < prefix <= len(table.num_free_blocks):
            raise ValueError(f"request {row.id} names the cached prefix {prefix} of {len(table.num_free_blocks)}")
        parent = table.parent[prefix - 1] if table.parent else 0
        if parent >= prefix:
            raise ValueError(f"cached prefix {prefix} continues {parent}, which does not stand before it")
        reused[prefix] = table.num_free_blocks[prefix - 1]
        prefix = parent
    return reused


def blocks_counted_twice(state: state_pb2.ExecutorState, rows: Iterable[Row]) -> int:
    """Free blocks that several of these would reuse, each counted as often as there is one too many."""
    seen: set[int] = set()
    num_blocks = 0
    for row in rows:
        reused = reused_prefixes(state, row)
        num_blocks += sum(blocks for prefix, blocks in reused.items() if prefix in seen)
        seen |= reused.keys()
    return num_blocks


def rows_of(table: state_pb2.RequestTable) -> dict[int, Row]:
    """By id. A column that is left out is 0 in every row. Raises ValueError where columns have unequal lengths."""
    columns = {name: list(getattr(table, name)) or [0] * len(table.id) for name in COLUMNS}
    short = [name for name, column in columns.items() if len(column) != len(table.id)]
    if short:
        raise ValueError(f"column {short[0]} has {len(columns[short[0]])} rows, id has {len(table.id)}")
    return {
        values[0]: Row(**dict(zip(COLUMNS, values, strict=True)))
        for values in zip(*(columns[name] for name in COLUMNS), strict=True)
    }
