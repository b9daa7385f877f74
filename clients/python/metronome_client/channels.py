"""The settings of a channel, the same for every client."""

from __future__ import annotations

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""What the services accept; a table of 10,000 requests takes 0.8 MB."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

DEFAULT_TIMEOUT_S = 10.0
"""Deadline of the calls that answer at once; streams and `drain` have none unless the caller gives one."""


def duration(interval_s: float) -> Duration:
    """Seconds as the contract's duration."""
    message = Duration()
    message.FromTimedelta(timedelta(seconds=interval_s))
    return message
