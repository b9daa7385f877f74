"""What a pass will leave is what it leaves: a projection equals the snapshot taken afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from executor_service.engine.books import SCHEDULER_COLUMNS, Books, Rows, Status
from executor_service.engine.snapshot import Snapshot, project, take
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
    kinds = (
        lambda id: waiting(id, prompt=int(rng.integers(1, 40))),
        lambda id: evicted(id, prompt=int(rng.integers(1, 40))),
        lambda id: swapped(id, stored=int(rng.integers(1, 40))),
        lambda id: prefilling(id, prompt=50, stored=int(rng.integers(1, 50))),
        lambda id: decoding(id, stored=int(rng.integers(1, 40)), max_output_tokens=int(rng.integers(2, 4))),
    )
    return [kinds[rng.integers(len(kinds))](id) for id in range(1, 9)]


def really_run(books: Books, rows: Rows, num_tokens: np.ndarray) -> None:
    """What the engine does after a pass, end of answers included."""
    sampled = rows[books.num_lacking_tokens(rows) == num_tokens]
    books.advance(rows, num_tokens)
    for row in sampled:
        output = books.sequence(row).push(0)
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
    assert set(snapshot.columns) == set(SCHEDULER_COLUMNS)
    assert sorted(snapshot.columns["id"].tolist()) == [1, 3]
