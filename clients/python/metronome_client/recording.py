"""Reads what a scheduler or an executor recorded (`--record-dir`); record.proto has the format.

with open("recording-000001.pb.gz", "rb") as file:
    for record in read_recording(file):
        print(record.request.state.executors[0].iteration)
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from google.protobuf.message import DecodeError

from metronome.scheduler.v1 import record_pb2
from metronome_client.channels import MAX_MESSAGE_BYTES

MAX_RECORD_BYTES = 2 * MAX_MESSAGE_BYTES + 64
"""A request and a response; what claims to be larger is no record."""


class RecordingError(Exception):
    """The file is no recording, or damaged. The records before that place have been given."""


class TruncatedRecordingError(RecordingError):
    """The file ends too early: its recorder was killed, or still writes. All whole records have been given."""


def read_recording(file: BinaryIO) -> Iterator[record_pb2.PlanRecord]:
    """Give the records of one file, oldest first. Raises RecordingError at the place where it cannot go on."""
    num_records = 0
    try:
        with gzip.open(file) as content:
            while (payload := _next_payload(content)) is not None:
                yield record_pb2.PlanRecord.FromString(payload)
                num_records += 1
    except EOFError:
        text = f"ends too early (its recorder was killed, or still writes); {num_records} whole records before that"
        raise TruncatedRecordingError(text) from None
    except (gzip.BadGzipFile, zlib.error, DecodeError) as error:
        place = f"damaged after {num_records} records" if num_records else "no recording"
        raise RecordingError(f"{place}: {error}") from None


def _next_payload(content: gzip.GzipFile) -> bytes | None:
    """Give the bytes of one message, or None at the end. Raises EOFError where the end comes before its time."""
    size = shift = 0
    while True:
        byte = content.read(1)
        if not byte and shift == 0:
            return None
        if not byte:
            raise EOFError
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if size > MAX_RECORD_BYTES or shift > 63:
            raise DecodeError("a record is larger than any can be")
        if byte[0] < 0x80:
            break
    payload = content.read(size)
    if len(payload) < size:
        raise EOFError
    return payload
