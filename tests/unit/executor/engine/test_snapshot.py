"""What a pass will leave is what it leaves: a projection equals the snapshot taken afterwards."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor_service.engine.books import SCHEDULER_COLUMNS, Books, Rows, Status
from executor_service.engine.snapshot import SHARING_COLUMNS, Snapshot, project, take
from executor_service.kv.prefix_cache import PrefixScope
from support.books import Standing, books_with, decoding, evicted, prefilling, swapped, waiting
from support.engine import limits_of


def image_of(snapshot: Snapshot) -> dict[str, object]:
    columns = {name: column.tolist() for name, column in snapshot.columns.items()}
    return {
        "columns": columns,
        "iteration": snapshot.iteration,
        "free": (snapshot.num_free_blocks, snapshot.num_free_swap_blocks),
        "tenants": snapshot.tenants,
        "service": snapshot.tenant_service.tolist(),
    }


def taken(books: Books) -> Snapshot:
    return take(books, now_us=1, latency=None)


def random_standings(rng: np.random.Generator) -> list[Standing]:
    """Of two texts, so that some share blocks and others would."""
    kinds = (
        lambda id: waiting(id, prompt=int(rng.integers(1, 40))),
        lambda id: evicted(id, prompt=int(rng.integers(1, 40))),
        lambda id: swapped(id, stored=int(rng.integers(1, 40))),
        lambda id: prefilling(id, prompt=50, stored=int(rng.integers(1, 50))),
        lambda id: decoding(id, stored=int(rng.integers(1, 40)), max_output_tokens=int(rng.integers(2, 4))),
    )
    return [replace(kinds[rng.integers(len(kinds))](id), text=int(rng.integers(1, 3))) for id in range(1, 9)]


def really_run(books: Books, rows: Rows, num_tokens: np.ndarray) -> None:
    """What the engine does after a pass, end of answers included."""
    sampled = rows[books.num_lacking_tokens(rows) == num_tokens]
    books.advance(rows, num_tokens)
    for row in sampled:
        sequence = books.sequence(row)
        output = sequence.push(int(sequence.tokens(0, 1)[0]) + sequence.num_tokens)
        books["num_output_tokens"][row] += 1
        if output.finish_reason is not None:
            books.end(int(books["id"][row]))
    books.iteration += 1


@pytest.mark.parametrize("seed", range(25))
def test_a_projection_equals_the_snapshot_after_the_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    books = books_with(limits_of(num_blocks=64, num_swap_blocks=64), *random_standings(rng))
    books.tenants.kv_residency_charge = float(rng.choice([0.0, 0.5]))
    running = books.rows_with(Status.RUNNING)
    rows = rng.permutation(running)[: rng.integers(len(running) + 1)]
    num_tokens = rng.integers(1, books.num_lacking_tokens(rows) + 1).astype(np.int32)
    books.grow(rows, num_tokens)
    before = image_of(taken(books))
    projected = project(books, rows, num_tokens, now_us=1, latency=None)
    assert image_of(taken(books)) == before
    really_run(books, rows, num_tokens)
    assert image_of(projected) == image_of(taken(books))


TOLD = ("num_computed_tokens", "num_blocks", "num_shared_blocks")


def sharing(books: Books) -> dict[int, tuple[int, ...]]:
    """The columns that tell what is shared, by id."""
    columns = taken(books).columns
    told = zip(*(columns[name].tolist() for name in TOLD), strict=True)
    return dict(zip(columns["id"].tolist(), told, strict=True))


def of_text(text: int, *standings: Standing) -> tuple[Standing, ...]:
    return tuple(replace(standing, text=text) for standing in standings)


def test_one_that_waits_is_shown_with_its_cached_prefix_and_what_others_hold_of_it() -> None:
    first_text = of_text(1, decoding(1, 36), waiting(2, prompt=48), waiting(3, prompt=32))
    books = books_with(limits_of(), *first_text, *of_text(2, waiting(4, prompt=48)))
    assert sharing(books) == {1: (36, 3, 0), 2: (32, 2, 2), 3: (16, 1, 1), 4: (0, 0, 0)}
    books.end(1)
    assert sharing(books) == {2: (32, 2, 0), 3: (16, 1, 0), 4: (0, 0, 0)}
    assert books.block_pool.num_free == 8


def test_those_that_run_are_shown_with_the_blocks_that_another_holds_too() -> None:
    books = books_with(limits_of(), *of_text(1, decoding(1, 36), decoding(2, 20)), decoding(3, 40))
    assert sharing(books) == {1: (36, 3, 1), 2: (20, 2, 1), 3: (40, 3, 0)}
    assert books.block_pool.num_free == 1
    books.end(1)
    assert sharing(books) == {2: (20, 2, 0), 3: (40, 3, 0)}


def test_one_that_was_evicted_by_recompute_finds_its_own_output_too() -> None:
    books = books_with(limits_of(), replace(decoding(1, 39), num_prompt_tokens=20, num_output_tokens=20))
    books.evict_by_recompute(int(books.rows_of([1])[0]))
    assert sharing(books) == {1: (32, 2, 0)}


def test_a_projection_foresees_what_the_pass_will_publish() -> None:
    books = books_with(limits_of(), *of_text(1, prefilling(1, 48, stored=10), waiting(2, prompt=48)))
    rows, num_tokens = books.rows_of([1]), np.array([30], dtype=np.int32)
    books.grow(rows, num_tokens)
    assert sharing(books)[2] == (0, 0, 0)
    columns = project(books, rows, num_tokens, now_us=1, latency=None).columns
    waits = columns["id"].tolist().index(2)
    assert tuple(columns[name][waits] for name in TOLD) == (32, 2, 2)


def next_hashes(books: Books) -> dict[int, int]:
    columns = taken(books).columns
    return dict(zip(columns["id"].tolist(), columns["next_block_hash"].tolist(), strict=True))


def test_the_next_block_has_one_name_for_all_who_lack_it() -> None:
    first_text = of_text(1, prefilling(1, 64, stored=20), waiting(2, prompt=64), waiting(3, prompt=33))
    books = books_with(limits_of(), *first_text, *of_text(2, waiting(4, prompt=64)))
    hashes = next_hashes(books)
    assert hashes[1] == hashes[2] == hashes[3] != 0
    assert hashes[4] not in (0, hashes[1])
    before = hashes[2]
    rows, num_tokens = books.rows_of([1]), np.array([12], dtype=np.int32)
    books.grow(rows, num_tokens)
    books.advance(rows, num_tokens)
    hashes = next_hashes(books)
    assert hashes[1] == hashes[2] != before
    assert hashes[3] == 0, "of its next block it may not reuse the last token"


def test_a_block_that_is_not_shared_has_no_name() -> None:
    alone = replace(waiting(2, prompt=64), reuse_prefix=False)
    assert next_hashes(books_with(limits_of(), alone, waiting(3, prompt=16), decoding(4, stored=31))) == {
        2: 0,
        3: 0,
        4: 0,
    }
    assert next_hashes(books_with(limits_of(), waiting(2, prompt=64), prefix_scope=PrefixScope.OFF)) == {2: 0}


def test_a_snapshot_is_a_copy() -> None:
    books = books_with(limits_of(), decoding(1, 20), waiting(2))
    snapshot = taken(books)
    before = image_of(snapshot)
    books.end(1)
    books["num_prompt_tokens"][:] = 77
    assert image_of(snapshot) == before


def test_a_snapshot_has_a_row_for_each_request_and_every_column_of_the_scheduler() -> None:
    snapshot = taken(books_with(limits_of(), waiting(3), decoding(1, 20)))
    assert snapshot.num_requests == 2
    assert set(snapshot.columns) == {*SCHEDULER_COLUMNS, *SHARING_COLUMNS}
    assert sorted(snapshot.columns["id"].tolist()) == [1, 3]
