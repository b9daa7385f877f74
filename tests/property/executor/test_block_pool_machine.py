"""Block pool and swap space, driven together as an executor drives them, against plain lists and dicts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from executor_service.kv.block_pool import BlockAccountingError, BlockIds, BlockPool, OutOfBlocksError
from executor_service.kv.swap_space import AlreadySwappedError, NotSwappedError, SwapSpace, SwapSpaceFullError
from support.depth import num_examples


def as_ids(blocks: list[int]) -> BlockIds:
    return np.array(blocks, dtype=np.int32)


class KvBooksMachine(RuleBasedStateMachine):
    """Requests hold device blocks, some shared by a fork; some are swapped out and come back or are dropped."""

    @initialize(num_blocks=st.integers(0, 12), num_swap_blocks=st.integers(0, 8))
    def start(self, num_blocks: int, num_swap_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.swap_space = SwapSpace(num_swap_blocks)
        self.running: dict[int, list[int]] = {}  # request id -> device blocks
        self.swapped: dict[int, tuple[list[int], int]] = {}  # request id -> swap blocks, tokens
        self.next_id = 0

    def new_request(self, blocks: list[int]) -> None:
        self.running[self.next_id] = blocks
        self.next_id += 1

    def free_blocks(self) -> set[int]:
        return set(range(self.pool.num_blocks)) - {block for held in self.running.values() for block in held}

    def free_swap_blocks(self) -> set[int]:
        held = {block for blocks, _ in self.swapped.values() for block in blocks}
        return set(range(self.swap_space.num_blocks)) - held

    def allocate(self, count: int) -> list[int] | None:
        """Fresh blocks, or nothing where the model says that there are too few."""
        free = self.free_blocks()
        if count > len(free):
            with pytest.raises(OutOfBlocksError) as raised:
                self.pool.allocate(count)
            assert (raised.value.needed, raised.value.free) == (count, len(free))
            return None
        blocks: list[int] = self.pool.allocate(count).tolist()
        assert len(blocks) == len(set(blocks)) == count
        assert set(blocks) <= free
        return blocks

    def release_expecting(self, blocks: list[int], remaining: dict[int, list[int]]) -> None:
        still_held = {block for held in remaining.values() for block in held}
        assert self.pool.release(as_ids(blocks)) == len(set(blocks) - still_held)

    @rule(count=st.integers(0, 6))
    def admit(self, count: int) -> None:
        blocks = self.allocate(count)
        if blocks is not None:
            self.new_request(blocks)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 3))
    def grow(self, data: st.DataObject, count: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        blocks = self.allocate(count)
        if blocks is not None:
            self.running[request_id] += blocks

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        blocks = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        shared = blocks[: data.draw(st.integers(0, len(blocks)))]
        self.pool.share(as_ids(shared))
        self.new_request(shared)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        blocks = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.release_expecting(blocks, self.running)

    @precondition(lambda self: self.running)
    @rule()
    def finish_all_in_one_call(self) -> None:
        blocks = [block for held in self.running.values() for block in held]
        self.running.clear()
        self.release_expecting(blocks, self.running)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_tokens=st.integers(0, 100))
    def swap_out(self, data: st.DataObject, num_tokens: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.running)))
        blocks, free = self.running[request_id], self.free_swap_blocks()
        if len(blocks) > len(free):
            with pytest.raises(SwapSpaceFullError) as raised:
                self.swap_space.swap_out(request_id, num_blocks=len(blocks), num_tokens=num_tokens)
            assert (raised.value.needed, raised.value.free) == (len(blocks), len(free))
            return
        swap_blocks: list[int] = self.swap_space.swap_out(
            request_id, num_blocks=len(blocks), num_tokens=num_tokens
        ).tolist()
        assert set(swap_blocks) <= free
        self.swapped[request_id] = (swap_blocks, num_tokens)
        self.release_expecting(self.running.pop(request_id), self.running)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.swapped)))
        holding = self.swap_space.holding(request_id)
        blocks = self.allocate(len(holding.blocks))
        if blocks is not None:
            swap_blocks, _ = self.swapped.pop(request_id)
            assert self.swap_space.release(request_id) == len(swap_blocks)
            self.running[request_id] = blocks

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def cancel_swapped(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.swapped)))
        swap_blocks, _ = self.swapped.pop(request_id)
        assert self.swap_space.release(request_id) == len(swap_blocks)
        with pytest.raises(NotSwappedError):
            self.swap_space.release(request_id)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_out_twice(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.swapped)))
        with pytest.raises(AlreadySwappedError):
            self.swap_space.swap_out(request_id, num_blocks=1, num_tokens=1)

    @rule(data=st.data())
    def touch_a_free_block(self, data: st.DataObject) -> None:
        """In the middle of blocks that are held, so that a half-done operation would show."""
        outside = [-1, self.pool.num_blocks]
        wrong = data.draw(st.sampled_from(sorted(self.free_blocks()) + outside))
        blocks = [block for held in self.running.values() for block in held]
        for operation in (self.pool.release, self.pool.share):
            with pytest.raises(BlockAccountingError):
                operation(as_ids([*blocks, wrong]))

    @invariant()
    def books_equal_the_model(self) -> None:
        assert self.pool.num_free == len(self.free_blocks())
        assert self.swap_space.num_free == len(self.free_swap_blocks())
        assert len(self.swap_space) == len(self.swapped)
        counts = Counter(block for held in self.running.values() for block in held)
        every_block = np.arange(self.pool.num_blocks, dtype=np.int32)
        assert self.pool.reference_counts(every_block).tolist() == [counts[block] for block in range(len(every_block))]
        for request_id, (swap_blocks, num_tokens) in self.swapped.items():
            holding = self.swap_space.holding(request_id)
            assert (holding.blocks.tolist(), holding.num_tokens) == (swap_blocks, num_tokens)

    @invariant()
    def integrity_holds(self) -> None:
        self.pool.check_integrity(as_ids(blocks) for blocks in self.running.values())
        self.swap_space.check_integrity()


TestKvBooks = KvBooksMachine.TestCase
TestKvBooks.settings = settings(max_examples=num_examples(60), stateful_step_count=40)
