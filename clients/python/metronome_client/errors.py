"""The one error of a call: the status code, and the reason that the service gave with it.

A service of Metronome sends `google.rpc.ErrorInfo` with each error that it raises itself. An error without one comes
from the transport (nobody listens, the connection broke) or from a deadline, and has an empty reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

_DETAILS_KEY = "grpc-status-details-bin"


class MetronomeError(Exception):
    """A call that failed.

    `reason` is a name of the contract's `ErrorReason` without its prefix ("EXCEEDS_MODEL_LEN"), or empty; `metadata`
    has the figures that belong to it.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, metadata: Mapping[str, str]) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.reason = reason
        self.message = message or code.name
        self.metadata = dict(metadata)


def error_from_call(error: grpc.RpcError) -> MetronomeError:
    """Read the status of a failed call; sync and asyncio errors of grpc offer it alike."""
    info = _error_info(error.trailing_metadata())
    return MetronomeError(error.code(), info.reason, error.details() or "", info.metadata)


def _error_info(trailing_metadata: object) -> ErrorInfo:
    """Find the `ErrorInfo` in the trailing metadata; an empty one where there is none."""
    info = ErrorInfo()
    pairs = trailing_metadata if trailing_metadata is not None else ()
    for key, value in pairs:  # type: ignore[attr-defined]  # grpc's metadata: a tuple of pairs, or an aio.Metadata
        if key == _DETAILS_KEY:
            for detail in Status.FromString(value).details:
                if detail.Unpack(info):
                    return info
    return info


@contextmanager
def raising_metronome_errors() -> Iterator[None]:
    """Turn the errors of calls inside into `MetronomeError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_call(error) from None
