"""A request table and what is taken from it."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from scheduler_service.core.state import COLUMN_NAMES, Requests
from support.states import loading, preempted, requests_of, running, swapped, waiting

ROWS = (running(7), waiting(3, num_prompt_tokens=40), swapped(5), preempted(2), loading(9), running(4))
DERIVED = ("num_tokens", "num_lacking_tokens", "ran_before", "never_ran", "in_decode")


def copied(requests: Requests) -> Requests:
    """The same requests as a table of their own."""
    columns = {name: getattr(requests, name) for name in COLUMN_NAMES}
    return Requests.from_columns(len(requests), columns)


def test_what_is_taken_reads_as_if_it_were_a_table_of_its_own() -> None:
    table = requests_of(*ROWS)
    for taken in (table.take(np.array([4, 0, 3])), table.first(2), table.queued, table.on_device, table.first(0)):
        alone = copied(taken)
        for name in (*COLUMN_NAMES, *DERIVED):
            assert getattr(taken, name).tolist() == getattr(alone, name).tolist(), name


def test_taking_again_counts_among_the_taken() -> None:
    table = requests_of(*ROWS)
    taken = table.take(np.array([4, 0, 3]))
    assert taken.take(np.array([2, 0])).id.tolist() == [2, 9]
    assert taken.first(1).beside(table.running).id.tolist() == [9, 7, 4]
    assert taken.take(np.array([1])).whole is table


def test_who_stands_where() -> None:
    table = requests_of(*ROWS)
    assert table.running.id.tolist() == [7, 4]
    assert table.loading.id.tolist() == [9]
    assert table.on_device.id.tolist() == [7, 4, 9]
    assert table.queued.id.tolist() == [3, 5, 2]
    assert table.anyone_ran_before
    assert not requests_of(*ROWS[:2]).anyone_ran_before


def test_a_rank_comes_with_what_is_taken_and_changes_nothing_else() -> None:
    table = requests_of(*ROWS)
    assert table.running.rank is None
    by_rank = table.ranked_by(np.arange(6) * 10)
    taken = by_rank.take(np.array([5, 1]))
    assert taken.rank is not None
    assert taken.rank.tolist() == [50, 10]
    assert by_rank.running.id.tolist() == [7, 4]
    assert table.rank is None


def test_an_empty_table_has_extremes_too() -> None:
    assert set(requests_of().greatest.values()) == set(requests_of().least.values()) == {0}


def test_a_table_is_freed_without_looking_for_cycles() -> None:
    gc.disable()
    try:
        table = requests_of(*ROWS)
        assert len(table.on_device.num_tokens) == 3
        alive = weakref.ref(table)
        del table
        assert alive() is None
    finally:
        gc.enable()
