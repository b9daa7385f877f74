"""The request table, and the blocks that each request holds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from executor_service.engine.books import Books, Status
from executor_service.kv.block_pool import BlockAccountingError
from executor_service.kv.prefix_cache import Prefix
from support.engine import limits_of, sequence_of

NOTHING = Prefix(blocks=np.empty(0, dtype=np.int32))


def running_books(*num_stored: int, **sizes: int) -> Books:
    """Requests 1, 2, ... in prefill, of whose prompts so many tokens are stored (of one more than that)."""
    books = Books(limits_of(**{"num_swap_blocks": 8, **sizes}))
    for request_id, count in enumerate(num_stored, start=1):
        books.add(sequence_of(request_id, range(count + 1), 4))
        run(books, request_id, count)
    return books


def row_of(books: Books, request_id: int) -> int:
    return int(books.rows_of([request_id])[0])


def run(books: Books, request_id: int, num_tokens: int) -> None:
    rows, count = books.rows_of([request_id]), np.array([num_tokens], dtype=np.int32)
    books.admit(rows, [NOTHING])
    books.grow(rows, count)
    books.advance(rows, count)


def blocks_of(books: Books, request_id: int) -> list[int]:
    row = row_of(books, request_id)
    blocks: list[int] = books.block_tables[row, : books["num_blocks"][row]].tolist()
    return blocks


def test_a_new_request_waits_with_what_it_asked_for() -> None:
    books = Books(limits_of())
    books.add(sequence_of(7, [1, 2, 3], 5, priority=-2, tenant="x", expected_output_tokens=4, deadline_us=99))
    row = row_of(books, 7)
    columns = {name: column[row] for name, column in books.columns.items()}
    assert columns["status"] == Status.WAITING
    assert (columns["num_prompt_tokens"], columns["max_output_tokens"], columns["expected_output_tokens"]) == (3, 5, 4)
    assert (columns["priority"], columns["deadline_us"], columns["arrival_time_us"]) == (-2, 99, 7)
    assert columns["num_computed_tokens"] == columns["num_blocks"] == columns["num_output_tokens"] == 0
    assert 7 in books
    assert 8 not in books
    assert books.rows_of([8, 7]).tolist() == [-1, row]


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_growing_gives_the_blocks_that_the_tokens_need(num_tokens: int, num_blocks: int) -> None:
    books = running_books(num_tokens)
    assert len(set(blocks_of(books, 1))) == num_blocks
    assert books.block_pool.num_free == 8 - num_blocks
    books.check_integrity()


def test_growing_keeps_the_blocks_that_are_held_and_takes_only_what_is_missing() -> None:
    books = running_books(15, 16, 40)
    before = [blocks_of(books, request_id) for request_id in (1, 2, 3)]
    rows = books.rows_of([1, 2, 3])
    books.grow(rows, np.array([1, 1, 8], dtype=np.int32))
    after = [blocks_of(books, request_id) for request_id in (1, 2, 3)]
    assert [len(blocks) for blocks in after] == [1, 2, 3]
    assert [blocks[: len(held)] for blocks, held in zip(after, before, strict=True)] == before
    books.check_integrity()


def test_eviction_by_recompute_gives_everything_up() -> None:
    books = running_books(20)
    books.evict_by_recompute(row_of(books, 1))
    row = row_of(books, 1)
    assert books["status"][row] == Status.WAITING
    assert books["num_computed_tokens"][row] == books["num_blocks"][row] == 0
    assert books["num_preemptions"][row] == 1
    assert books.block_pool.num_free == 8
    books.check_integrity()


def test_eviction_by_swap_and_resume_say_which_blocks_to_copy() -> None:
    books = running_books(20, 16)
    row = row_of(books, 1)
    held = blocks_of(books, 1)
    out = books.evict_by_swap(row)
    books.check_integrity()
    assert (books["status"][row], books["num_computed_tokens"][row], books["num_blocks"][row]) == (
        Status.SWAPPED,
        20,
        2,
    )
    assert out.source.tolist() == held
    assert len(set(out.target.tolist())) == 2
    assert (books.block_pool.num_free, books.swap_space.num_free) == (7, 6)
    back = books.resume(row, NOTHING)
    books.check_integrity()
    assert back.source.tolist() == out.target.tolist()
    assert back.target.tolist() == blocks_of(books, 1)
    assert (books["status"][row], books["num_computed_tokens"][row]) == (Status.RUNNING, 20)
    assert (books.block_pool.num_free, books.swap_space.num_free) == (5, 8)


@pytest.mark.parametrize("leave", [Books.evict_by_swap, Books.evict_by_recompute, None])
def test_a_request_that_ends_leaves_nothing_behind(leave: Callable[[Books, int], object] | None) -> None:
    books = running_books(20)
    if leave is not None:
        leave(books, row_of(books, 1))
    assert books.end(1).request.id == 1
    assert len(books) == 0
    assert (books.block_pool.num_free, books.swap_space.num_free) == (8, 8)
    assert not any(column.any() for column in books.columns.values())
    books.check_integrity()


def test_the_table_doubles_and_keeps_what_it_has() -> None:
    books = Books(limits_of(num_blocks=64), capacity=2)
    for request_id in range(1, 12):
        books.add(sequence_of(request_id, [request_id] * request_id, 4))
        run(books, request_id, request_id)
    held = [blocks_of(books, request_id) for request_id in range(1, 12)]
    assert len({block for blocks in held for block in blocks}) == 11
    rows = books.rows_of(range(1, 12))
    assert len(set(rows.tolist())) == 11
    assert books["num_prompt_tokens"][rows].tolist() == list(range(1, 12))
    assert [books.sequence(row).request.id for row in rows] == list(range(1, 12))
    books.check_integrity()


def test_rows_of_the_ended_are_used_again() -> None:
    books = Books(limits_of(), capacity=2)
    for request_id in range(1, 100):
        books.add(sequence_of(request_id, [1], 1))
        if request_id > 1:
            books.end(request_id - 1)
    assert len(books["id"]) == 2


def test_tenant_indexes_are_used_again_once_a_tenant_has_no_request() -> None:
    books = Books(limits_of())
    tenant_of = {1: "a", 2: "b", 3: "a", 4: "c"}
    for request_id in (1, 2, 3):
        books.add(sequence_of(request_id, [1], 1, tenant=tenant_of[request_id]))
    assert books["tenant"][books.rows_of([1, 2, 3])].tolist() == [0, 1, 0]
    books.end(1)
    books.end(2)
    books.add(sequence_of(4, [1], 1, tenant="c"))
    assert books.tenants.names == ["a", "c"]
    assert books["tenant"][books.rows_of([3, 4])].tolist() == [0, 1]


def leak_a_block(books: Books) -> None:
    books.block_pool.allocate(1)


def share_a_block(books: Books) -> None:
    books.block_tables[row_of(books, 2), 0] = books.block_tables[row_of(books, 1), 0]


def lose_a_block(books: Books) -> None:
    books["num_blocks"][row_of(books, 1)] -= 1


def count_tokens_without_blocks(books: Books) -> None:
    books["num_computed_tokens"][row_of(books, 1)] += 100


def lose_swap_blocks(books: Books) -> None:
    books.swap_space.release(3)


def miscount_swap_blocks(books: Books) -> None:
    books["num_blocks"][row_of(books, 3)] += 1


def forget_to_resume(books: Books) -> None:
    books["status"][row_of(books, 3)] = Status.WAITING


def hold_blocks_while_waiting(books: Books) -> None:
    books["num_blocks"][row_of(books, 4)] = 1


def lose_a_row(books: Books) -> None:
    books["status"][row_of(books, 4)] = 0


@pytest.mark.parametrize(
    "corrupt",
    [
        leak_a_block,
        share_a_block,
        lose_a_block,
        count_tokens_without_blocks,
        lose_swap_blocks,
        miscount_swap_blocks,
        forget_to_resume,
        hold_blocks_while_waiting,
        lose_a_row,
    ],
)
def test_the_integrity_check_sees(corrupt: Callable[[Books], None]) -> None:
    books = running_books(20, 10, 30)
    books.evict_by_swap(row_of(books, 3))
    books.add(sequence_of(4, [1], 1))
    books.check_integrity()
    corrupt(books)
    with pytest.raises(BlockAccountingError):
        books.check_integrity()


def test_admission_counts_those_it_overtakes() -> None:
    books = Books(limits_of())
    for request_id, arrival in {1: 30, 2: 10, 3: 20, 4: 20}.items():
        books.add(sequence_of(request_id, [1], 1, arrival_time_us=arrival))
    books.admit(books.rows_of([4, 1]), [NOTHING, NOTHING])
    assert books["times_overtaken"][books.rows_of([2, 3])].tolist() == [2, 2]
    assert books["times_overtaken"][books.rows_of([1, 4])].tolist() == [0, 0]
