"""What is found again, by whom, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from executor_service.kv import prefix_cache
from executor_service.kv.block_pool import BlockAccountingError, BlockPool
from executor_service.kv.digest_table import DIGEST_SIZE
from executor_service.kv.prefix_cache import BlockChain, PrefixCache, PrefixScope

BLOCK_SIZE = 4


class Words:
    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.array(tokens, dtype=np.int32)

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        return self._tokens[start:stop]


def chain_of(tokens: Sequence[int], *, tenant: str = "", scope: PrefixScope = PrefixScope.TENANT) -> BlockChain:
    return BlockChain(scope.root(tenant), Words(tokens), block_size=BLOCK_SIZE)


class Shelf:
    """A cache over eight blocks, and who holds them."""

    def __init__(self) -> None:
        self.pool = BlockPool(8)
        self.cache = PrefixCache(self.pool, block_size=BLOCK_SIZE)

    def store(self, chain: BlockChain, num_blocks: int) -> list[int]:
        """Compute a text's first blocks, publish them, and let them go."""
        blocks = self.cache.allocate(num_blocks)
        self.cache.publish(chain, 0, blocks)
        self.pool.release(blocks)
        self.cache.check_integrity()
        self.pool.check_integrity([])
        stored: list[int] = blocks.tolist()
        return stored

    def found(self, chain: BlockChain, limit: int) -> list[int]:
        matched: list[int] = self.cache.match(chain, limit).tolist()
        assert matched == self.cache.find(chain, limit)
        return matched


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_the_longest_known_prefix_is_found_in_whole_blocks(shelf: Shelf) -> None:
    blocks = shelf.store(chain_of(range(12)), 3)
    assert shelf.found(chain_of(range(12)), 3) == blocks
    assert shelf.found(chain_of(range(12)), 2) == blocks[:2]
    assert shelf.found(chain_of([*range(8), 77, *range(9, 20)]), 5) == blocks[:2]
    assert shelf.found(chain_of(range(1, 13)), 3) == []
    assert shelf.found(chain_of(range(3)), 0) == []


def test_a_block_is_found_only_after_all_that_comes_before_it(shelf: Shelf) -> None:
    """The second block of both texts has the same tokens, and other KV."""
    shelf.store(chain_of([1, 1, 1, 1, 5, 6, 7, 8]), 2)
    assert shelf.found(chain_of([2, 2, 2, 2, 5, 6, 7, 8]), 2) == []
    assert shelf.found(chain_of([5, 6, 7, 8]), 1) == []


def test_of_two_blocks_with_one_text_the_first_is_found_and_the_second_is_not_kept(shelf: Shelf) -> None:
    first = shelf.cache.allocate(1)
    second = shelf.cache.allocate(1)
    for blocks in (first, second):
        shelf.cache.publish(chain_of(range(4)), 0, blocks)
    assert len(shelf.cache) == 1
    assert shelf.found(chain_of(range(4)), 1) == first.tolist()
    shelf.pool.release(second)
    assert shelf.pool.num_kept == 0
    shelf.cache.check_integrity()


def test_what_is_allocated_anew_is_found_no_more(shelf: Shelf) -> None:
    old, new = shelf.store(chain_of(range(12)), 3), shelf.store(chain_of(range(100, 112)), 3)
    held = shelf.cache.allocate(3)
    assert shelf.found(chain_of(range(12)), 3) == old[:2], "two were empty, then goes the end of what is older"
    shelf.cache.allocate(3)
    assert shelf.found(chain_of(range(12)), 3) == []
    assert shelf.found(chain_of(range(100, 112)), 3) == new[:2]
    assert set(held.tolist()).isdisjoint(new)
    shelf.cache.check_integrity()


def test_what_was_found_before_is_found_again_only_while_it_is_there(shelf: Shelf) -> None:
    """One chain, looked up time and again."""
    blocks, chain = shelf.store(chain_of(range(12)), 3), chain_of(range(16))
    assert [shelf.found(chain, limit) for limit in (3, 4, 2, 1)] == [blocks, blocks, blocks[:2], blocks[:1]]
    shelf.cache.forget(np.array(blocks[2:], dtype=np.int32))
    assert shelf.found(chain, 4) == blocks[:2]
    others = shelf.store(chain_of(range(12)), 3)
    assert others[0] not in blocks[:2]
    assert shelf.found(chain, 4) == [*blocks[:2], others[2]]
    shelf.cache.allocate(8)
    assert shelf.found(chain, 4) == []


def test_what_is_only_foreseen_is_not_remembered(shelf: Shelf) -> None:
    stored, chain = shelf.store(chain_of(range(4)), 1), chain_of(range(12))
    soon = {chain.digests(2)[1]: 7}
    assert shelf.cache.find(chain, 3, soon) == [*stored, 7]
    assert shelf.cache.find(chain, 3, soon, [*stored, 7]) == [*stored, 7]
    assert shelf.found(chain, 3) == stored


def test_without_tokens_to_compare_a_digest_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(2)
    cache = PrefixCache(pool, block_size=BLOCK_SIZE, compares_tokens=False)
    monkeypatch.setattr(prefix_cache, "child_digest", lambda *_: bytes([1]) * DIGEST_SIZE)
    blocks = cache.allocate(1)
    cache.publish(chain_of([1, 2, 3, 4]), 0, blocks)
    assert cache.match(chain_of([1, 2, 3, 9]), 1).tolist() == blocks.tolist()
    cache.check_integrity()


def test_what_is_forgotten_is_not_found_and_its_blocks_are_empty(shelf: Shelf) -> None:
    blocks = shelf.store(chain_of(range(8)), 2)
    shelf.cache.forget(np.array(blocks[1:], dtype=np.int32))
    assert shelf.found(chain_of(range(8)), 2) == blocks[:1]
    assert shelf.pool.num_kept == 1
    shelf.cache.check_integrity()


def test_blocks_that_will_have_been_published_can_be_looked_up_before(shelf: Shelf) -> None:
    chain = chain_of(range(16))
    stored = shelf.store(chain, 1)
    soon = {chain.digests(3)[1]: 6, chain.digests(3)[2]: 5}
    assert shelf.cache.find(chain, 4, soon) == [*stored, 6, 5]
    assert shelf.cache.find(chain, 2, soon) == [*stored, 6]
    assert shelf.cache.find(chain_of(range(1, 17)), 4, soon) == []


@pytest.mark.parametrize(
    ("scope", "tenant", "finds"),
    [
        (PrefixScope.TENANT, "t1", True),
        (PrefixScope.TENANT, "t2", False),
        (PrefixScope.TENANT, "", False),
        (PrefixScope.SHARED, "t2", True),
        (PrefixScope.SHARED, "", True),
    ],
)
def test_case_29_who_finds_what_was_computed_for_whom(
    shelf: Shelf, scope: PrefixScope, tenant: str, finds: bool
) -> None:
    shelf.store(chain_of(range(8), tenant="t1", scope=scope), 2)
    assert bool(shelf.found(chain_of(range(8), tenant=tenant, scope=scope), 2)) is finds


def test_no_name_of_a_tenant_is_the_scope_of_all() -> None:
    roots = {PrefixScope.TENANT.root(name) for name in ("", "shared", "tenant", ":", "off")}
    assert len(roots | {PrefixScope.SHARED.root("")}) == 6


def test_case_29_a_digest_that_fits_is_not_believed_where_the_tokens_differ(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one digest of all texts."""
    monkeypatch.setattr(prefix_cache, "child_digest", lambda *_: bytes([1]) * DIGEST_SIZE)
    shelf.store(chain_of([1, 2, 3, 4]), 1)
    assert shelf.cache.find(chain_of([1, 2, 3, 9]), 1) != []
    assert shelf.cache.match(chain_of([1, 2, 3, 9]), 1).tolist() == []
    assert shelf.cache.match(chain_of([1, 2, 3, 4]), 1).tolist() != []


def test_tokens_are_hashed_alike_on_every_machine() -> None:
    """Of numbers of 4 bytes, the least significant first: two replicas of one text agree on its name."""
    digest = prefix_cache.child_digest(b"root", np.array([1, 2, 256], dtype=">i4"))
    assert digest == prefix_cache.child_digest(b"root", np.array([1, 2, 256], dtype=np.int32))


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda shelf: shelf.pool.discard(np.array([0], dtype=np.int32)),
        lambda shelf: shelf.pool.allocate(8),
        lambda shelf: shelf.cache._full.remove(np.array([0], dtype=np.int32)),
        lambda shelf: shelf.cache._full._digests.__setitem__(0, b"another"),
        lambda shelf: shelf.cache._num_tokens.__setitem__(0, 1),
    ],
    ids=[
        "content is gone",
        "blocks were allocated past the cache",
        "a digest is gone",
        "another digest",
        "a part can be found",
    ],
)
def test_the_integrity_check_sees(shelf: Shelf, corrupt: object) -> None:
    shelf.store(chain_of(range(8)), 2)
    assert callable(corrupt)
    corrupt(shelf)
    with pytest.raises(BlockAccountingError):
        shelf.cache.check_integrity()
