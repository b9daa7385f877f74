"""A request table, and what follows from its rows."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler_service.core import case as rules
from scheduler_service.core.case import case_of
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import COLUMN_NAMES, Requests, RequestStatus, Tenant, Tenants
from support.states import executor_of, loading, preempted, requests_of, running, swapped, waiting

ROWS = (running(7), waiting(3, num_prompt_tokens=40), swapped(5), preempted(2), loading(9), running(4))


def test_a_column_is_a_row_of_the_matrix() -> None:
    table = requests_of(*ROWS)
    assert table.matrix.shape == (len(COLUMN_NAMES), len(ROWS))
    assert table.id.tolist() == [7, 3, 5, 2, 9, 4]
    for index, name in enumerate(COLUMN_NAMES):
        assert getattr(table, name).tolist() == table.matrix[index].tolist()
        assert getattr(rules, name.upper()) == index


def test_a_table_is_one_piece_of_memory_whatever_it_was_made_from() -> None:
    matrix = requests_of(*ROWS).matrix
    assert Requests(np.asfortranarray(matrix)).matrix.flags.c_contiguous
    assert Requests(matrix).matrix is matrix


@pytest.mark.parametrize(
    ("rule", "holds_for"),
    [
        (rules.in_decode, [7, 5, 9, 4]),
        (rules.is_on_device, [7, 9, 4]),
        (rules.ran_before, [5, 2]),
    ],
)
def test_what_follows_from_a_row(rule: object, holds_for: list[int]) -> None:
    executor = executor_of(*ROWS, num_swap_blocks=8)
    case = case_of(executor, Policy())
    assert callable(rule)
    assert [id for row, id in enumerate(executor.requests.id.tolist()) if rule(case, row)] == holds_for


def test_rows_that_have_a_status() -> None:
    case = case_of(executor_of(*ROWS, num_swap_blocks=8), Policy())
    assert rules.rows_with(RequestStatus.RUNNING, case).tolist() == [0, 5]
    assert rules.rows_with(RequestStatus.SWAPPED, case).tolist() == [2]


def test_tenants_are_columns_and_read_as_a_list() -> None:
    tenants = Tenants.of(Tenant(name="a", weight=2.0), Tenant(name="b", service=5.0))
    assert tenants.weight.tolist() == [2.0, 1.0]
    assert list(tenants) == [Tenant(name="a", weight=2.0), Tenant(name="b", service=5.0)]
