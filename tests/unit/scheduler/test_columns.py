"""Tables read and written as they lie on the wire say what protobuf says, and leave to it what lies there otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metronome.scheduler.v1 import plan_pb2, state_pb2
from scheduler_service.columns import MAX_COPIED_ROWS, TableLayout
from scheduler_service.convert import requests_from
from scheduler_service.core.errors import ErrorReason, StateError
from scheduler_service.core.state import COLUMN_NAMES

LAYOUT = TableLayout(state_pb2.RequestTable)
REQUIRED = ("id", "status", "num_prompt_tokens")
FIELDS = state_pb2.RequestTable.DESCRIPTOR.fields_by_name
UNKNOWN_FIELD = b"\xa2\x06\x01x"  # number 100, one byte

Table = state_pb2.RequestTable


def numbers(name: str) -> st.SearchStrategy[int]:
    if name == "status":
        return st.integers(0, 127)
    bits = 64 if FIELDS[name].type == FieldDescriptor.TYPE_SFIXED64 else 32
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Columns of one length, of any numbers; those that are not required may be left out."""
    num_rows = draw(st.integers(0, 40))
    table = Table()
    for name in COLUMN_NAMES:
        if name in REQUIRED or draw(st.booleans()):
            getattr(table, name).extend(draw(st.lists(numbers(name), min_size=num_rows, max_size=num_rows)))
    return table


def small_table() -> Table:
    return Table(id=[1, 2], status=[1, 2], num_prompt_tokens=[16, 32], priority=[-1, 7])


@given(tables())
def test_the_views_are_the_columns(table: Table) -> None:
    views = LAYOUT.views(table, len(table.id))
    assert views is not None
    columns = {name: [] if view is None else view.tolist() for name, view in zip(COLUMN_NAMES, views, strict=True)}
    assert columns == {name: list(getattr(table, name)) for name in COLUMN_NAMES}


@given(tables())
def test_requests_have_what_protobuf_reads(table: Table) -> None:
    requests = requests_from(table, "requests")
    for name in set(COLUMN_NAMES) - {"num_computed_tokens"}:
        expected = list(getattr(table, name)) or [0] * len(table.id)
        assert getattr(requests, name).tolist() == expected


def shorten(table: Table) -> None:
    table.priority.pop()


def lengthen(table: Table) -> None:
    table.priority.append(1)


def take_a_wide_status(table: Table) -> None:
    table.status[1] = 128


def take_one_status_in_two_bytes(table: Table) -> None:
    """As many bytes as there are rows, and a value less."""
    del table.status[:]
    table.status.append(200)


def take_a_negative_status(table: Table) -> None:
    table.status[0] = -1


def add_an_unknown_field(table: Table) -> None:
    table.MergeFromString(UNKNOWN_FIELD)


@pytest.mark.parametrize(
    "change",
    [
        shorten,
        lengthen,
        take_a_wide_status,
        take_one_status_in_two_bytes,
        take_a_negative_status,
        add_an_unknown_field,
    ],
)
def test_what_lies_there_otherwise_is_left_to_protobuf(change: Callable[[Table], None]) -> None:
    table = small_table()
    change(table)
    assert LAYOUT.views(table, len(table.id)) is None


@pytest.mark.parametrize("num_rows", [MAX_COPIED_ROWS, MAX_COPIED_ROWS + 1])
def test_a_long_table_is_read_all_the_same(num_rows: int) -> None:
    table = Table(id=range(1, num_rows + 1), status=[1] * num_rows, num_prompt_tokens=range(1, num_rows + 1))
    assert (LAYOUT.views(table, num_rows) is None) == (num_rows > MAX_COPIED_ROWS)
    requests = requests_from(table, "requests")
    assert requests.id.tolist() == requests.num_prompt_tokens.tolist() == list(range(1, num_rows + 1))
    assert not requests.priority.any()


def test_a_field_that_is_not_known_changes_nothing() -> None:
    table = small_table()
    add_an_unknown_field(table)
    assert requests_from(table, "requests").matrix.tolist() == requests_from(small_table(), "requests").matrix.tolist()


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        (shorten, "requests.priority", ErrorReason.COLUMN_LENGTH),
        (lengthen, "requests.priority", ErrorReason.COLUMN_LENGTH),
        (take_one_status_in_two_bytes, "requests.status", ErrorReason.COLUMN_LENGTH),
        (lambda table: table.ClearField("status"), "requests.status", ErrorReason.MISSING_FIELD),
        (lambda table: table.ClearField("id"), "requests.id", ErrorReason.MISSING_FIELD),
    ],
)
def test_a_column_at_fault_is_named(change: Callable[[Table], None], field: str, reason: ErrorReason) -> None:
    table = small_table()
    change(table)
    with pytest.raises(StateError) as caught:
        requests_from(table, "requests")
    assert (caught.value.field, caught.value.reason) == (field, reason)


@pytest.mark.parametrize("status", [[128, -1], [1, 2]])
def test_a_status_that_nobody_knows_arrives_as_it_is(status: list[int]) -> None:
    table = small_table()
    table.status[:] = status
    assert requests_from(table, "requests").status.tolist() == status


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """Columns as the core has them."""

    id: NDArray[np.int64]
    mode: NDArray[np.int64]
    reason: NDArray[np.int64]


@given(st.lists(st.tuples(st.integers(1, 2**63 - 1), st.integers(1, 2), st.integers(0, 54)), min_size=1, max_size=300))
def test_a_table_is_written_as_protobuf_would(rows: list[tuple[int, int, int]]) -> None:
    ids, modes, reasons = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    written = plan_pb2.EvictTable()
    TableLayout(plan_pb2.EvictTable).fill(written, Evictions(id=ids, mode=modes, reason=reasons))
    expected = plan_pb2.EvictTable(id=ids.tolist(), mode=modes.tolist(), reason=reasons.tolist())
    assert written.SerializeToString() == expected.SerializeToString()
