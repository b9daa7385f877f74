"""What a caller did wrong, as a gRPC status.

One table says which exception is which status code. The details are a `google.rpc.Status` with an `ErrorInfo` (the
reason of error_reason.proto, with its figures) and, where a field is at fault, a `BadRequest` that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from scheduler_service.core.errors import PolicyError, SchedulerError, StateError, UnknownProfileError

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

DOMAIN = "scheduler.metronome"
UNKNOWN_CALLER = "UNKNOWN_CALLER"
DRAINING = "DRAINING"
RETRY_AFTER_S = 1

STATUS_CODES: dict[type[SchedulerError], grpc.StatusCode] = {
    StateError: grpc.StatusCode.INVALID_ARGUMENT,
    PolicyError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownProfileError: grpc.StatusCode.INVALID_ARGUMENT,
}

# An error repeats what a caller sent, which may be long; gRPC drops a whole answer whose metadata is over 8 KiB.
MAX_TEXT_CHARACTERS = 200

# Where gRPC carries a google.rpc.Status.
_DETAILS_KEY = "grpc-status-details-bin"


def status_code(error: SchedulerError) -> grpc.StatusCode:
    """The code of the nearest class in the table."""
    return next(STATUS_CODES[cls] for cls in type(error).__mro__ if cls in STATUS_CODES)


def rich_status(error: SchedulerError) -> status_pb2.Status:
    """The error with its details."""
    metadata = {key: _shortened(value) for key, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=metadata)
    details: list[Message] = [info]
    if status_code(error) is grpc.StatusCode.INVALID_ARGUMENT:
        description = _shortened(error.description)
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=description)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    return _status(status_code(error), _shortened(str(error)), details)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[: MAX_TEXT_CHARACTERS - 1] + "…"


def _status(code: grpc.StatusCode, message: str, details: Sequence[Message]) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def refuse(context: Context, error: SchedulerError) -> NoReturn:
    """End the call with the status of the error."""
    await _end(context, status_code(error), rich_status(error))


async def refuse_malformed(context: Context, why: str) -> NoReturn:
    """End a call whose request is no message. No field is at fault: there are none."""
    info = error_details_pb2.ErrorInfo(reason="MALFORMED_MESSAGE", domain=DOMAIN)
    status = _status(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no message of the contract: {why}", [info])
    await _end(context, grpc.StatusCode.INVALID_ARGUMENT, status)


async def refuse_unknown_caller(context: Context) -> NoReturn:
    """End a call of somebody who is not let in."""
    info = error_details_pb2.ErrorInfo(reason=UNKNOWN_CALLER, domain=DOMAIN)
    message = "the call has no token or certificate that this service knows"
    status = _status(grpc.StatusCode.UNAUTHENTICATED, message, [info])
    await _end(context, grpc.StatusCode.UNAUTHENTICATED, status)


async def refuse_draining(context: Context) -> NoReturn:
    """End a call of a service that is about to stop."""
    info = error_details_pb2.ErrorInfo(reason=DRAINING, domain=DOMAIN)
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=RETRY_AFTER_S))
    message = "this scheduler drains and takes no new calls; try another"
    status = _status(grpc.StatusCode.UNAVAILABLE, message, [info, retry])
    await _end(context, grpc.StatusCode.UNAVAILABLE, status)


async def fail(context: Context, method: str) -> NoReturn:
    """End a call at which we failed ourselves."""
    info = error_details_pb2.ErrorInfo(reason="SCHEDULER_FAILED", domain=DOMAIN, metadata={"method": method})
    message = f"{method} failed by a fault of the scheduler; its log has more"
    await _end(context, grpc.StatusCode.INTERNAL, _status(grpc.StatusCode.INTERNAL, message, [info]))


async def _end(context: Context, code: grpc.StatusCode, status: status_pb2.Status) -> NoReturn:
    metadata = ((_DETAILS_KEY, status.SerializeToString()),)
    await context.abort(code, status.message, trailing_metadata=metadata)
    raise AssertionError("abort raises")
