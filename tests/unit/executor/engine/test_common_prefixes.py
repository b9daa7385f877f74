"""Free blocks that several would reuse are found as a tree, whatever the prefixes have in common."""

from __future__ import annotations

from itertools import chain
from random import Random

import numpy as np

from executor_service.engine.common_prefixes import MAX_DEPTH, CommonPrefixes, sharing_of

NUM_BLOCKS = 100
ALL_FREE = np.zeros(NUM_BLOCKS, dtype=np.int32)


def found(prefixes: list[list[int]], held: tuple[int, ...] = ()) -> tuple[list[int], list[tuple[int, int]]]:
    """The row of each prefix, and the rows: parent and free blocks."""
    counts = ALL_FREE.copy()
    counts[list(held)] = 1
    sharing = sharing_of(prefixes, counts)
    assert sharing.num_held_blocks.tolist() == [len(set(prefix) & set(held)) for prefix in prefixes]
    tree = sharing.common
    if tree is None:
        return sharing.row.tolist(), []
    return sharing.row.tolist(), list(zip(tree.parent.tolist(), tree.num_free_blocks.tolist(), strict=True))


def test_there_is_no_tree_where_nobody_shares_a_free_block() -> None:
    for prefixes in ([], [[]], [[1, 2]], [[1, 2], [3], []]):
        assert found(prefixes) == ([0] * len(prefixes), [])
    assert found([[1, 2], [1, 2]], held=(1, 2)) == ([0, 0], [])


def test_equal_prefixes_are_one_row() -> None:
    same = [4, 2, 9]
    assert found([same, [7], same, [4, 2, 9]]) == ([1, 0, 1, 1], [(0, 3)])
    assert found([same, same], held=(4,)) == ([1, 1], [(0, 2)])


def test_a_prefix_continues_those_that_others_have_too() -> None:
    prefixes = [[3, 7, 4], [3, 7, 8], [3, 7, 8, 5], [9]]
    assert found(prefixes) == ([1, 2, 2, 0], [(0, 2), (1, 1)])
    assert found([*prefixes, [3, 1]]) == ([2, 3, 3, 0, 1], [(0, 1), (1, 1), (2, 1)])


def test_the_tree_is_as_deep_as_the_contract_allows() -> None:
    longest = list(range(MAX_DEPTH + 20))
    rows, tree = found([longest[:length] for length in range(1, len(longest) + 1)])
    assert len(tree) == MAX_DEPTH
    assert rows == [*range(1, MAX_DEPTH + 1), *[MAX_DEPTH] * 20]


def test_what_any_of_them_take_together_is_told_exactly() -> None:
    for seed in range(300):
        random = Random(seed)
        prefixes, counts = grown(random)
        sharing = sharing_of(prefixes, counts)
        for _ in range(8):
            some = random.sample(range(len(prefixes)), random.randint(0, len(prefixes)))
            free = [[block for block in prefixes[i] if counts[block] == 0] for i in some]
            once = len(set(chain.from_iterable(free)))
            assert sum(map(len, free)) - counted_twice([int(sharing.row[i]) for i in some], sharing.common) == once, (
                seed
            )


def grown(random: Random) -> tuple[list[list[int]], np.ndarray]:
    """Prefixes that grew from each other, as in a cache, and who holds which block."""
    blocks = iter(random.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    texts: list[list[int]] = [[]]
    for _ in range(12):
        start = random.choice(texts)
        texts.append([*start[: random.randint(0, len(start))], *(next(blocks) for _ in range(random.randint(1, 4)))])
    prefixes = [text[: random.randint(0, len(text))] for text in random.choices(texts, k=random.randint(1, 10))]
    return prefixes, np.array([random.choice([0, 0, 1]) for _ in range(NUM_BLOCKS)], dtype=np.int32)


def counted_twice(rows: list[int], tree: CommonPrefixes | None) -> int:
    seen: set[int] = set()
    count = 0
    for prefix in rows:
        while prefix and tree is not None:
            count += int(tree.num_free_blocks[prefix - 1]) if prefix in seen else 0
            seen.add(prefix)
            prefix = int(tree.parent[prefix - 1])
    return count
