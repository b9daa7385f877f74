"""What a caller did wrong, as a gRPC status.

One table says which exception is which status code. The details are a `google.rpc.Status` with an `ErrorInfo` (the
reason of error_reason.proto, with its figures) and, where a field is at fault, a `BadRequest` that names it.
"""

from __future__ import annotations

from typing import NoReturn

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from scheduler_service.core.errors import PolicyError, SchedulerError, StateError, UnknownProfileError

DOMAIN = "scheduler.metronome"

STATUS_CODES: dict[type[SchedulerError], grpc.StatusCode] = {
    StateError: grpc.StatusCode.INVALID_ARGUMENT,
    PolicyError: grpc.StatusCode.INVALID_ARGUMENT,
    UnknownProfileError: grpc.StatusCode.INVALID_ARGUMENT,
}

# Where gRPC carries a google.rpc.Status.
_DETAILS_KEY = "grpc-status-details-bin"


def status_code(error: SchedulerError) -> grpc.StatusCode:
    """The code of the nearest class in the table."""
    return next(STATUS_CODES[cls] for cls in type(error).__mro__ if cls in STATUS_CODES)


def rich_status(error: SchedulerError) -> status_pb2.Status:
    """The error with its details."""
    info = error_details_pb2.ErrorInfo(reason=error.reason.name, domain=DOMAIN, metadata=error.metadata)
    details: list[Message] = [info]
    if status_code(error) is grpc.StatusCode.INVALID_ARGUMENT:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=error.description)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    status = status_pb2.Status(code=status_code(error).value[0], message=str(error))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


async def refuse(context: grpc.aio.ServicerContext, error: SchedulerError) -> NoReturn:  # type: ignore[type-arg]
    """End the call with the status of the error."""
    details = rich_status(error).SerializeToString()
    await context.abort(status_code(error), str(error), trailing_metadata=((_DETAILS_KEY, details),))
    raise AssertionError("abort raises")
