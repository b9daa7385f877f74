"""The prefix cache and its pool against plain lists: what is found, who holds it, and in which order it is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from executor_service.kv.block_pool import BlockIds, BlockPool, OutOfBlocksError
from executor_service.kv.prefix_cache import BlockChain, PrefixCache, PrefixScope
from support.depth import num_examples

BLOCK_SIZE = 2
Name = tuple[str, tuple[int, ...]]  # of a block's content: whose it is, and all tokens up to its end


def as_ids(blocks: list[int]) -> BlockIds:
    return np.array(blocks, dtype=np.int32)


@dataclass
class Computed:
    """A text on its way through the device. ``blocks`` hold it as far as it has come."""

    words: tuple[int, ...]
    tenant: str
    blocks: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chain = BlockChain(PrefixScope.TENANT.root(self.tenant), self, block_size=BLOCK_SIZE)

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        return np.array(self.words[start:stop], dtype=np.int32)

    @property
    def num_full_blocks(self) -> int:
        return len(self.words) // BLOCK_SIZE

    def name(self, index: int) -> Name:
        return self.tenant, self.words[: (index + 1) * BLOCK_SIZE]


class PrefixCacheMachine(RuleBasedStateMachine):
    """Texts of few words, so that many begin alike, in a pool that is too small for them."""

    @initialize(num_blocks=st.integers(1, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, block_size=BLOCK_SIZE)
        self.running: list[Computed] = []
        self.known: dict[Name, int] = {}
        self.tails: dict[Name, int] = {}
        self.kept: list[int] = []  # free blocks with content, least recently used first

    # The model

    def num_holders(self) -> Counter[int]:
        return Counter(block for text in self.running for block in text.blocks)

    def num_free(self) -> int:
        return self.pool.num_blocks - len(self.num_holders())

    def expected_prefix(self, text: Computed, limit: int) -> list[int]:
        blocks: list[int] = []
        for index in range(limit):
            if text.name(index) not in self.known:
                break
            blocks.append(self.known[text.name(index)])
        return blocks

    @property
    def contents(self) -> set[int]:
        return {*self.known.values(), *self.tails.values()}

    def lose(self, block: int) -> None:
        """Its content is gone."""
        self.known = {name: known for name, known in self.known.items() if known != block}
        self.tails = {name: known for name, known in self.tails.items() if known != block}
        if block in self.kept:
            self.kept.remove(block)

    def drop(self, text: Computed) -> None:
        """Its blocks are released, the last one first in the order in which they will be lost."""
        self.running.remove(text)
        holders, contents = self.num_holders(), self.contents
        self.kept += [block for block in text.blocks[::-1] if block in contents and not holders[block]]

    # What happens

    def allocate(self, text: Computed, count: int) -> bool:
        """Empty blocks go first, then those that were kept longest. Whether there were enough."""
        if count > self.num_free():
            before = (self.pool.num_free, self.pool.num_kept, len(self.cache))
            with pytest.raises(OutOfBlocksError):
                self.cache.allocate(count)
            assert (self.pool.num_free, self.pool.num_kept, len(self.cache)) == before
            return False
        num_lost = max(0, count - (self.num_free() - len(self.kept)))
        lost, held = self.kept[:num_lost], set(self.num_holders()) | set(self.kept)
        blocks: list[int] = self.cache.allocate(count).tolist()
        assert blocks[count - num_lost :] == lost
        assert held.isdisjoint(blocks[: count - num_lost])
        assert len(set(blocks)) == count
        for block in lost:
            self.lose(block)
        text.blocks += blocks
        return True

    @rule(words=st.lists(st.integers(0, 1), min_size=1, max_size=10), tenant=st.sampled_from(["", "", "t"]))
    def enter(self, words: list[int], tenant: str) -> None:
        """With as much as is known, but for the last word."""
        text = Computed(tuple(words), tenant)
        limit = (len(words) - 1) // BLOCK_SIZE
        prefix: list[int] = self.cache.match(text.chain, limit).tolist()
        assert prefix == self.cache.find(text.chain, limit) == self.expected_prefix(text, limit)
        self.pool.share(as_ids(prefix))
        text.blocks = prefix
        self.kept = [block for block in self.kept if block not in prefix]
        self.running.append(text)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.integers(1, 3))
    def compute(self, data: st.DataObject, count: int) -> None:
        """The next blocks of a text; it leaves where there is no room."""
        text = data.draw(st.sampled_from(self.running))
        first = len(text.blocks)
        count = min(count, -(-len(text.words) // BLOCK_SIZE) - first)
        if not self.allocate(text, count):
            self.finish(data)
            return
        filled = range(first, min(first + count, text.num_full_blocks))
        if filled:
            blocks = np.array([text.blocks[index] for index in filled], dtype=np.int32)
            self.cache.publish(text.chain, first, blocks)
        for index in filled:
            if text.blocks[index] not in self.known.values():
                self.known.setdefault(text.name(index), text.blocks[index])

    @precondition(lambda self: self.running)
    @rule(data=st.data(), forget=st.booleans())
    def tell_of_a_tail(self, data: st.DataObject, forget: bool) -> None:
        """The first word of a block is found where somebody asks for it, until nobody does."""
        text = data.draw(st.sampled_from(self.running))
        num_words = data.draw(st.integers(0, len(text.words) - 1)) // BLOCK_SIZE * BLOCK_SIZE + 1
        name, index = (text.tenant, text.words[:num_words]), num_words // BLOCK_SIZE
        digest = text.chain.tail_digest(num_words)
        assert self.cache.match_tail(text.chain, digest, num_words) == self.tails.get(name, -1)
        assert self.cache.finds(digest) == (name in self.tails)
        if forget and name in self.tails:
            self.cache.forget_texts([digest])
            block = self.tails.pop(name)
            if block not in self.known.values():
                self.lose(block)
        elif index < len(text.blocks) and text.blocks[index] not in self.tails.values():
            self.cache.publish_tail(text.chain, digest, num_words, text.blocks[index])
            self.tails.setdefault(name, text.blocks[index])

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.running))
        self.drop(text)
        holders = self.num_holders()
        assert self.pool.release(as_ids(text.blocks)) == sum(not holders[block] for block in text.blocks)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def forget_one_in_doubt(self, data: st.DataObject) -> None:
        text = data.draw(st.sampled_from(self.running))
        self.cache.forget(as_ids(text.blocks))
        for block in text.blocks:
            self.lose(block)
        self.drop(text)
        self.pool.release(as_ids(text.blocks))

    @rule(data=st.data())
    def foresee(self, data: st.DataObject) -> None:
        """The counts that a release will leave, and the blocks that a publication will make known."""
        released = [block for text in self.running for block in text.blocks if data.draw(st.booleans())]
        holders = self.num_holders()
        holders.subtract(released)
        counts = self.pool.reference_counts_without(as_ids(released)).tolist()
        assert counts == [holders[block] for block in range(self.pool.num_blocks)]

    # What always holds

    @invariant()
    def books_equal_the_model(self) -> None:
        holders = self.num_holders()
        every_block = np.arange(self.pool.num_blocks, dtype=np.int32)
        assert self.pool.reference_counts(every_block).tolist() == [holders[block] for block in every_block.tolist()]
        assert (self.pool.num_free, self.pool.num_kept) == (self.num_free(), len(self.kept))
        assert self.pool.with_content().tolist() == sorted(self.contents)
        assert len(self.cache) == len(self.contents)
        readable = dict.fromkeys(self.tails.values(), 1) | dict.fromkeys(self.known.values(), BLOCK_SIZE)
        assert self.cache.num_found_tokens(every_block).tolist() == [readable.get(b, 0) for b in every_block.tolist()]

    @invariant()
    def integrity_holds(self) -> None:
        self.pool.check_integrity(as_ids(text.blocks) for text in self.running)
        self.cache.check_integrity()


TestPrefixCache = PrefixCacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=num_examples(60), stateful_step_count=40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_operations() -> None:
    """Others in each run; a failure is printed as the steps that lead to it."""
    run_state_machine_as_test(
        PrefixCacheMachine,
        settings=settings(
            max_examples=1000,
            stateful_step_count=100,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
