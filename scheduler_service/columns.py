"""Tables as they lie on the wire: columns read and written whole, not number by number.

A packed column is a tag, a length in bytes and the numbers, little-endian and of fixed width; those of an enum are
below 128, so a byte each. So a table of n rows lies there much as it would in memory:

    tag  8n  n numbers of `id`    tag  n  n bytes of `status`    tag  8n  n numbers of `arrival_time_us`    ...

Asking protobuf for one column after the other costs several NumPy operations each; here they are views of one copy of
the table. Left to protobuf are long tables, which cost more to copy than to ask for, and what lies there otherwise:
columns of unequal length, an enum value of two bytes, a field that this version does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

_DTYPES: dict[int, np.dtype[Any]] = {
    FieldDescriptor.TYPE_SFIXED32: np.dtype("<i4"),
    FieldDescriptor.TYPE_SFIXED64: np.dtype("<i8"),
    FieldDescriptor.TYPE_ENUM: np.dtype("u1"),
}
_WIDTHS = {dtype.itemsize for dtype in _DTYPES.values()}
_LENGTH_DELIMITED = 2

MAX_COPIED_ROWS = 4096  # a third of a megabyte, if all columns of a request table are there


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    name: str
    tag: bytes
    dtype: np.dtype[Any]
    width: int  # bytes of a number


class TableLayout:
    """How tables of one kind lie on the wire: their columns by number, which is the order in which protobuf writes."""

    def __init__(self, table: type[Message]) -> None:
        fields: Any = table.DESCRIPTOR.fields
        self._columns = tuple(
            _Column(
                name=field.name,
                tag=_varint(field.number << 3 | _LENGTH_DELIMITED),
                dtype=_DTYPES[field.type],
                width=_DTYPES[field.type].itemsize,
            )
            for field in sorted(fields, key=lambda field: field.number)
        )

    def views(self, table: Message, num_rows: int) -> list[NDArray[Any] | None] | None:
        """The columns, each of `num_rows` numbers and read-only; None for one that is left out.

        None instead of them all where the table is laid out otherwise, or long.
        """
        if num_rows > MAX_COPIED_ROWS:
            return None
        wire = table.SerializeToString()
        lengths = {width: _varint(width * num_rows) for width in _WIDTHS}
        views: list[NDArray[Any] | None] = []
        start = 0
        for column in self._columns:
            header = column.tag + lengths[column.width]
            if not wire.startswith(header, start):
                views.append(None)
                continue
            start += len(header)
            end = start + column.width * num_rows
            if column.width == 1 and not wire[start:end].isascii():
                return None
            views.append(np.frombuffer(wire, column.dtype, num_rows, start))
            start = end
        return views if start == len(wire) else None

    def fill(self, message: Message, table: object) -> None:
        """Add the columns of `table`, an object with int64 arrays of their names, to a message."""
        columns = self._columns
        message.MergeFromString(b"".join([_packed(column, getattr(table, column.name)) for column in columns]))


def _packed(column: _Column, numbers: NDArray[Any]) -> bytes:
    payload = numbers.astype(column.dtype, copy=False).tobytes()
    return column.tag + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
