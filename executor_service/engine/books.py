"""The books: the request table as arrays, with the blocks that each request holds.

One row a request, one NumPy array a column; a row is free when its status is 0. That makes a state for the scheduler
and a batch for the device a few indexing operations, whatever the number of requests. The books own the two integer
pools (device blocks and swap blocks) and the prefix cache over the first, so one integrity check covers all. No tensor
is known here: whoever changes where KV lives returns the block ids to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.limits import Limits
from executor_service.engine.prefixes import Prefixes
from executor_service.engine.tenants import Tenants
from executor_service.kv.block_pool import BlockAccountingError, BlockPool
from executor_service.kv.prefix_cache import Prefix, PrefixScope
from executor_service.kv.swap_space import SwapSpace
from executor_service.sampling.asked import NO_LOGPROBS

if TYPE_CHECKING:  # books are kept without torch too
    from executor_service.engine.sequence import Sequence

Rows = NDArray[np.int64]
Blocks = NDArray[np.int32]
NO_BLOCKS: Blocks = np.empty(0, dtype=np.int32)


class Status(IntEnum):
    """Numbered as in the contract; 0 marks a free row."""

    WAITING = 1
    RUNNING = 2
    SWAPPED = 3


# What the scheduler sees, under the names of the contract; a snapshot adds what requests share (see snapshot.py).
SCHEDULER_COLUMNS: dict[str, type[np.generic]] = {
    "id": np.int64,
    "status": np.int8,
    "arrival_time_us": np.int64,
    "priority": np.int32,
    "tenant": np.int32,
    "num_prompt_tokens": np.int32,
    "num_output_tokens": np.int32,
    "num_computed_tokens": np.int32,
    "max_output_tokens": np.int32,
    "expected_output_tokens": np.int32,
    "num_draft_tokens": np.int32,  # behind the newest token, see drafts.py; of those that decode on the device
    "deadline_us": np.int64,
    "num_blocks": np.int32,
    "num_preemptions": np.int32,
    "last_run_iteration": np.int64,
    "times_overtaken": np.int32,
}
# What only the sampler needs.
SAMPLING_COLUMNS: dict[str, type[np.generic]] = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.uint64,
    "adjusts_logits": np.bool_,  # always; see also min_output_tokens
    "min_output_tokens": np.int32,
    "num_logprobs": np.int8,  # NO_LOGPROBS: none
    "num_prompt_logprobs": np.int8,
}
# What only the executor's own turns need.
TURN_COLUMNS: dict[str, type[np.generic]] = {
    "samples_of": np.int64,  # as in Request; 0 also where nothing may be reused
}
# What nobody decides by.
HISTORY_COLUMNS: dict[str, type[np.generic]] = {
    "num_lost_tokens": np.int32,  # the first of its tokens, whose KV was computed before and lost
}


_COLUMNS = SCHEDULER_COLUMNS | SAMPLING_COLUMNS | TURN_COLUMNS | HISTORY_COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockCopy:
    """Blocks of one request to copy, pairwise: [n] of the source, [n] of the target."""

    row: int
    source: Blocks
    target: Blocks


class Books:
    """All requests of one executor, and all its blocks. ``iteration`` is the pass that comes next."""

    def __init__(
        self,
        limits: Limits,
        *,
        prefix_scope: PrefixScope = PrefixScope.TENANT,
        compares_tokens: bool = True,
        max_num_drafts: int = 0,
        capacity: int = 64,
    ) -> None:
        """``compares_tokens`` False: what two requests share is told by digests alone."""
        self.limits = limits
        self.max_num_drafts = max_num_drafts  # of a request in a pass
        self.iteration = 1
        self.block_pool = BlockPool(limits.num_blocks)
        self.prefixes = Prefixes(
            self.block_pool, scope=prefix_scope, block_size=limits.block_size, compares_tokens=compares_tokens
        )
        self.swap_space = SwapSpace(limits.num_swap_blocks)
        self.tenants = Tenants()
        self.columns: dict[str, NDArray[Any]] = {
            name: np.zeros(capacity, dtype=dtype) for name, dtype in _COLUMNS.items()
        }
        # [capacity, max_blocks_per_request]; entries beyond num_blocks are stale but valid ids.
        self.block_tables: Blocks = np.zeros((capacity, limits.max_blocks_per_request), dtype=np.int32)
        self._sequences: list[Sequence | None] = [None] * capacity
        self._row_of: dict[int, int] = {}
        self._free_rows = list(range(capacity - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._row_of

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]

    # Rows

    def rows(self) -> Rows:
        """Rows in use, ascending."""
        return np.flatnonzero(self.columns["status"])

    def rows_with(self, status: Status) -> Rows:
        return np.flatnonzero(self.columns["status"] == status)

    def rows_of(self, ids: Iterable[int]) -> Rows:
        """The row of each id; -1 where there is none."""
        row_of = self._row_of
        return np.fromiter((row_of.get(request_id, -1) for request_id in ids), dtype=np.int64)

    def sequence(self, row: int) -> Sequence:
        sequence = self._sequences[row]
        assert sequence is not None, f"row {row} is free"
        return sequence

    def sequences(self) -> Iterator[Sequence]:
        return (sequence for sequence in self._sequences if sequence is not None)

    def num_lacking_tokens(self, rows: Rows) -> NDArray[np.int32]:
        """Tokens whose KV does not exist yet: 1 in decode, more in prefill."""
        c = self.columns
        num_tokens: NDArray[np.int32] = c["num_prompt_tokens"][rows] + c["num_output_tokens"][rows]
        num_computed: NDArray[np.int32] = c["num_computed_tokens"][rows]
        return num_tokens - num_computed

    def in_decode(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of ``rows`` lack nothing but the newest token of their answer."""
        decodes: NDArray[np.bool_] = (self.num_lacking_tokens(rows) == 1) & (
            self.columns["num_output_tokens"][rows] > 0
        )
        return decodes

    def num_recomputed_tokens(self, rows: Rows, num_tokens: NDArray[np.int32]) -> int:
        """Of the next ``num_tokens`` of each, how many were computed before, and lost."""
        lost = self.columns["num_lost_tokens"][rows] - self.columns["num_computed_tokens"][rows]
        return int(np.minimum(lost, num_tokens).clip(min=0).sum())

    def num_preemptions(self, request_id: int) -> int:
        return int(self.columns["num_preemptions"][self._row_of[request_id]])

    # Arrival and departure

    def add(self, sequence: Sequence) -> None:
        """Queue a new request. Its id must never have been used before."""
        request = sequence.request
        assert request.id not in self._row_of, f"request {request.id} is in the books already"
        if not self._free_rows:
            self._double_capacity()
        row = self._free_rows.pop()
        self._row_of[request.id] = row
        self._sequences[row] = sequence
        self.prefixes.enter(row, sequence)
        values = {
            "id": request.id,
            "status": Status.WAITING,
            "arrival_time_us": request.arrival_time_us,
            "priority": request.priority,
            "tenant": self.tenants.enter(request.tenant),
            "num_prompt_tokens": len(request.prompt_token_ids),
            "max_output_tokens": request.stopping.max_output_tokens,
            "expected_output_tokens": request.expected_output_tokens,
            "deadline_us": request.deadline_us,
            "temperature": request.sampling.temperature,
            "top_k": request.sampling.top_k,
            "top_p": request.sampling.top_p,
            "min_p": request.sampling.min_p,
            "seed": request.sampling.seed,
            "adjusts_logits": not request.sampling.adjustments.is_neutral,
            "min_output_tokens": request.stopping.min_output_tokens,
            "num_logprobs": _or_none(request.output.num_logprobs),
            "num_prompt_logprobs": _or_none(request.output.num_prompt_logprobs),
            "samples_of": request.samples_of if request.reuse_prefix else 0,
        }
        for name, column in self.columns.items():
            column[row] = values.get(name, 0)

    def end(self, request_id: int) -> Sequence:
        """Forget a request and free all that it holds, on the device and in swap space."""
        row = self._row_of.pop(request_id)
        status = self.columns["status"][row]
        if status == Status.RUNNING:
            self._release_device_blocks(row)
        elif status == Status.SWAPPED:
            self.swap_space.release(request_id)
        self.tenants.leave(int(self.columns["tenant"][row]))
        for column in self.columns.values():
            column[row] = 0
        sequence = self.sequence(row)
        self._sequences[row] = None
        self.prefixes.leave(row)
        self._free_rows.append(row)
        return sequence

    # Transitions: each assumes that a checked plan asks for it (see apply.py)

    def evict_by_swap(self, row: int) -> BlockCopy:
        """Give the device blocks up for as many swap blocks as the KV fills. Copy before they are written again."""
        c = self.columns
        self._release_surplus(row)
        source = self._blocks_of(row).copy()
        target = self.swap_space.swap_out(
            int(c["id"][row]), num_blocks=len(source), num_tokens=int(c["num_computed_tokens"][row])
        )
        self.block_pool.release(source)
        c["num_draft_tokens"][row] = 0
        c["status"][row] = Status.SWAPPED
        c["num_preemptions"][row] += 1
        return BlockCopy(row=row, source=source, target=target)

    def evict_by_recompute(self, row: int) -> None:
        """Drop the KV; prompt and output will be prefilled again."""
        self.lose_kv(row)
        self.columns["num_preemptions"][row] += 1

    def lose_kv(self, row: int) -> None:
        """A running or swapped request goes back to the queue and holds nothing."""
        c = self.columns
        if c["status"][row] == Status.SWAPPED:
            self.swap_space.release(int(c["id"][row]))
            c["num_blocks"][row] = 0
        else:
            self._release_device_blocks(row)
        c["status"][row] = Status.WAITING
        c["num_lost_tokens"][row] = max(c["num_lost_tokens"][row], c["num_computed_tokens"][row])
        c["num_computed_tokens"][row] = 0
        c["num_draft_tokens"][row] = 0

    def resume(self, row: int, prefix: Prefix) -> BlockCopy:
        """Bring a swapped request back, with its ``cached_prefix``; the rest is to be copied.

        Copy before the swap blocks are written again, then ``note_copied_in``.
        """
        request_id = int(self.columns["id"][row])
        num_reused = len(prefix.blocks)
        source = self.swap_space.holding(request_id).blocks
        self._hold(row, prefix.blocks)
        target = self.prefixes.cache.allocate(len(source) - num_reused)
        self.swap_space.release(request_id)
        self.block_tables[row, num_reused : len(source)] = target
        self.columns["num_blocks"][row] = len(source)
        self.columns["status"][row] = Status.RUNNING
        return BlockCopy(row=row, source=source[num_reused:], target=target)

    def note_copied_in(self, resumed: Iterable[int]) -> None:
        """The KV of these rows is on the device; others can find it again."""
        rows = np.fromiter(resumed, dtype=np.int64)
        num_computed = self.columns["num_computed_tokens"][rows]
        self.prefixes.publish(rows, np.zeros_like(num_computed), num_computed, self.block_tables)

    def admit(self, rows: Rows, prefixes: Iterable[Prefix]) -> None:
        """Let waiting requests run, each with its ``cached_prefix``.

        One with a tail must ``grow``, and then have it copied (``tail_copies``), before the tail's block is written.
        Those that arrived before one of them and still wait are overtaken by it.
        """
        if not len(rows):
            return
        c = self.columns
        for row, prefix in zip(rows, prefixes, strict=True):
            self._hold(row, prefix.blocks)
            c["num_computed_tokens"][row] = prefix.num_tokens(self.limits.block_size)
        c["status"][rows] = Status.RUNNING
        waiting = self.rows_with(Status.WAITING)
        arrived = c["arrival_time_us"]
        later = (arrived[rows] > arrived[waiting, None]) | (
            (arrived[rows] == arrived[waiting, None]) & (c["id"][rows] > c["id"][waiting, None])
        )  # [num_waiting, num_admitted]
        c["times_overtaken"][waiting] += later.sum(axis=1, dtype=np.int32)

    def grow(self, rows: Rows, num_tokens: NDArray[np.int32]) -> None:
        """Give each running row the blocks that its next ``num_tokens`` tokens need."""
        c = self.columns
        held = c["num_blocks"][rows]
        missing = self.num_blocks_for(c["num_computed_tokens"][rows] + num_tokens) - held
        grows = np.flatnonzero(missing > 0)  # one request in block_size at a time decodes across a block's end
        if not len(grows):
            return
        rows, held, missing = rows[grows], held[grows], missing[grows]
        blocks = self.prefixes.cache.allocate(int(missing.sum()))
        c["num_blocks"][rows] += missing
        start = 0
        for row, first, count in zip(rows.tolist(), held.tolist(), missing.tolist(), strict=True):
            self.block_tables[row, first : first + count] = blocks[start : start + count]
            start += count

    def tail_copies(self, rows: Rows, prefixes: Iterable[Prefix]) -> tuple[BlockCopy, ...]:
        """The copies on the device that admitted requests with these prefixes need, each into its own new block."""
        return tuple(
            BlockCopy(
                row=row,
                source=np.array([prefix.tail_block], dtype=np.int32),
                target=self.block_tables[row, len(prefix.blocks) : len(prefix.blocks) + 1].copy(),
            )
            for row, prefix in zip(rows.tolist(), prefixes, strict=True)
            if prefix.num_tail_tokens
        )

    def advance(self, rows: Rows, num_tokens: NDArray[np.int32], num_refused: NDArray[np.int32] | None = None) -> None:
        """Note that a pass computed so many tokens of each row; the blocks that it filled can be reused from now on.

        The last ``num_refused`` of them (None: of nobody any) are drafts that turned out wrong: work that was done, and
        KV that does not count. Blocks with nothing else in them are free again.
        """
        num_kept = num_tokens if num_refused is None else num_tokens - num_refused
        num_computed = self.columns["num_computed_tokens"]
        self.tenants.serve(*self.costs_of_pass(rows, num_tokens))
        self.prefixes.publish(rows, num_computed[rows], num_kept, self.block_tables)
        num_computed[rows] += num_kept
        self.columns["last_run_iteration"][rows] = self.iteration
        for row in rows[num_kept < num_tokens].tolist():
            self._release_surplus(row)

    def costs_of_pass(self, rows: Rows, num_tokens: NDArray[np.int32]) -> tuple[Rows, NDArray[Any], NDArray[Any]]:
        """Of each on the device, [num_running]: tenant, tokens computed in a pass over ``rows``, blocks held alone.

        Where no tenant is charged for blocks they are not counted: 0, and of ``rows`` alone.
        """
        tenant = self.columns["tenant"]
        if self.tenants.kv_residency_charge <= 0:
            return tenant[rows], num_tokens, np.zeros(len(rows), dtype=np.int64)
        running = self.rows_with(Status.RUNNING)
        computed = np.zeros(len(tenant), dtype=np.int64)
        computed[rows] = num_tokens
        num_shared = self.num_shared_blocks(running, self.block_pool.reference_counts_without(NO_BLOCKS))
        return tenant[running], computed[running], self.columns["num_blocks"][running] - num_shared

    # Reuse

    def num_reusable_tokens(self, rows: Rows) -> NDArray[np.int32]:
        """How many of the first tokens of each, waiting or swapped, may come from the prefix cache when it enters.

        Of one that waits all but the last, whose logits are needed; of a swapped one what it has in swap space.
        """
        c = self.columns
        num_tokens: NDArray[np.int32] = c["num_prompt_tokens"][rows] + c["num_output_tokens"][rows] - 1
        return np.where(c["status"][rows] == Status.SWAPPED, c["num_computed_tokens"][rows], num_tokens)

    def cached_prefix(self, row: int) -> Prefix:
        """What a request would reuse of the device's blocks if it entered now."""
        num_tokens = int(self.num_reusable_tokens(np.array([row]))[0])
        if self.columns["status"][row] == Status.SWAPPED:  # its tail it has in swap space
            return Prefix(blocks=self.prefixes.match(int(row), num_tokens))
        return self.prefixes.match_with_tail(int(row), num_tokens)

    def forget_prefix(self, request_id: int) -> None:
        """Let nobody reuse what a running request holds: its KV is in doubt."""
        row = self._row_of.get(request_id, -1)
        if row >= 0 and self.columns["status"][row] == Status.RUNNING:
            self.prefixes.cache.forget(self._blocks_of(row))

    # Blocks

    def blocks_of(self, rows: Rows) -> Blocks:
        """The device blocks of ``rows``, one row's after another's, in the order of their texts."""
        held = [self._blocks_of(row) for row in rows]
        return np.concatenate([NO_BLOCKS, *held])

    def num_shared_blocks(self, rows: Rows, counts: NDArray[np.int32]) -> NDArray[np.int64]:
        """[n] how many blocks of each, running, others hold too. ``counts``: [num_blocks] references of each block."""
        if not len(rows) or int(counts.max()) <= 1:
            return np.zeros(len(rows), dtype=np.int64)
        num_blocks = self.columns["num_blocks"][rows]
        width = int(num_blocks.max())
        holds = np.arange(width) < num_blocks[:, None]
        shared: NDArray[np.int64] = ((counts[self.block_tables[rows, :width]] > 1) & holds).sum(axis=1)
        return shared

    def num_blocks_for(self, num_tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        return -(-num_tokens // self.limits.block_size)

    def check_integrity(self) -> None:
        """Raise BlockAccountingError unless free + in use = all, in both pools, and every holder is accounted for."""
        c = self.columns
        rows, running, swapped = self.rows(), self.rows_with(Status.RUNNING), self.rows_with(Status.SWAPPED)
        if dict(zip(c["id"][rows].tolist(), rows.tolist(), strict=True)) != self._row_of:
            raise BlockAccountingError("the rows in use are not those of the requests")
        self.block_pool.check_integrity(self._blocks_of(row) for row in running)
        self.prefixes.cache.check_integrity()
        self.swap_space.check_integrity()
        if len(self.swap_space) != len(swapped):
            raise BlockAccountingError(f"{len(self.swap_space)} requests hold swap blocks, {len(swapped)} are swapped")
        for request_id, num_blocks in zip(c["id"][swapped].tolist(), c["num_blocks"][swapped].tolist(), strict=True):
            if len(self.swap_space.holding(request_id).blocks) != num_blocks:
                raise BlockAccountingError(f"request {request_id} does not hold {num_blocks} swap blocks")
        if (c["num_computed_tokens"][rows] > c["num_blocks"][rows] * self.limits.block_size).any():
            raise BlockAccountingError("a request has computed tokens and no block for them")
        if c["num_draft_tokens"][rows[c["status"][rows] != Status.RUNNING]].any():
            raise BlockAccountingError("a request that is not on the device has drafts")
        if c["num_blocks"][self.rows_with(Status.WAITING)].any():
            raise BlockAccountingError("a waiting request holds blocks")

    def _blocks_of(self, row: int) -> Blocks:
        return self.block_tables[row, : self.columns["num_blocks"][row]]

    def _hold(self, row: int, prefix: Blocks) -> None:
        """Put the blocks of a cached prefix at the head of a row that has none."""
        self.block_pool.share(prefix)
        self.block_tables[row, : len(prefix)] = prefix
        self.columns["num_blocks"][row] = len(prefix)

    def _release_surplus(self, row: int) -> None:
        """Give back the device blocks in which nothing that counts is stored."""
        num_needed = self.limits.blocks_for(int(self.columns["num_computed_tokens"][row]))
        self.block_pool.release(self._blocks_of(row)[num_needed:])
        self.columns["num_blocks"][row] = num_needed

    def _release_device_blocks(self, row: int) -> None:
        self.block_pool.release(self._blocks_of(row))
        self.columns["num_blocks"][row] = 0

    # Storage

    def _double_capacity(self) -> None:
        capacity = len(self._sequences)
        self.columns = {name: np.concatenate([c, np.zeros_like(c)]) for name, c in self.columns.items()}
        self.block_tables = np.concatenate([self.block_tables, np.zeros_like(self.block_tables)])
        self._sequences += [None] * capacity
        self._free_rows = list(range(2 * capacity - 1, capacity - 1, -1))


def _or_none(num_logprobs: int | None) -> int:
    return NO_LOGPROBS if num_logprobs is None else num_logprobs
