"""Errors as a client sees them: a canonical code, a sentence, and `google.rpc` details (AIP-193).

ServiceError            carries all of it; raised by whoever knows what is wrong
error_of_ending(...)    the status of a request that the engine ended
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from executor_service.engine.request import EndCause
from metronome.inference.v1 import error_reason_pb2 as pb

DOMAIN = "executor.metronome"
Reason = pb.ErrorReason

_CODES: dict[int, grpc.StatusCode] = {
    pb.ERROR_REASON_EMPTY_PROMPT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_EXCEEDS_MODEL_LEN: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_EXCEEDS_KV_CACHE: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_OUT_OF_RANGE: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_UNKNOWN_TOKEN: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_INVALID_TEXT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_DUPLICATE_REQUEST_ID: grpc.StatusCode.ALREADY_EXISTS,
    pb.ERROR_REASON_UNKNOWN_REQUEST_ID: grpc.StatusCode.NOT_FOUND,
    pb.ERROR_REASON_NO_CHAT_TEMPLATE: grpc.StatusCode.FAILED_PRECONDITION,
    pb.ERROR_REASON_QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_MODEL_LOADING: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_DRAINING: grpc.StatusCode.UNAVAILABLE,
    pb.ERROR_REASON_DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    pb.ERROR_REASON_CANCELLED: grpc.StatusCode.CANCELLED,
    pb.ERROR_REASON_INVALID_LOGITS: grpc.StatusCode.INTERNAL,
    pb.ERROR_REASON_REQUEST_FAILED: grpc.StatusCode.INTERNAL,
    pb.ERROR_REASON_NOT_OFFERED: grpc.StatusCode.UNIMPLEMENTED,
    pb.ERROR_REASON_REJECTED_BY_SCHEDULER: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_INVALID_CONSTRAINT: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_NO_TOKEN_ALLOWED: grpc.StatusCode.INVALID_ARGUMENT,
}

_REASONS_OF_ENDINGS: dict[EndCause, Reason] = {
    EndCause.CANCELLED: pb.ERROR_REASON_CANCELLED,
    EndCause.DEADLINE: pb.ERROR_REASON_DEADLINE,
    EndCause.REJECTED: pb.ERROR_REASON_REJECTED_BY_SCHEDULER,
    EndCause.INVALID_LOGITS: pb.ERROR_REASON_INVALID_LOGITS,
    EndCause.FAILED: pb.ERROR_REASON_REQUEST_FAILED,
    EndCause.SHUT_DOWN: pb.ERROR_REASON_DRAINING,
    EndCause.NO_TOKEN_ALLOWED: pb.ERROR_REASON_NO_TOKEN_ALLOWED,
}


class ServiceError(Exception):
    """What went wrong, in the contract's terms. ``field`` is the path of the request's field that is at fault."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after

    @property
    def code(self) -> grpc.StatusCode:
        return _CODES[self.reason]

    def status(self) -> status_pb2.Status:
        """The `google.rpc.Status` that goes with the call's trailing metadata."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        metadata = self.metadata | ({"field": self.field} if self.field else {})
        name = pb.ErrorReason.Name(self.reason).removeprefix("ERROR_REASON_")
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=name, domain=DOMAIN, metadata=metadata))
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_after is not None:
            delay = Duration()
            delay.FromTimedelta(self.retry_after)
            status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        return status


def error_of_ending(cause: EndCause, detail: str) -> ServiceError:
    return ServiceError(_REASONS_OF_ENDINGS[cause], f"the request ended: {detail}")


async def abort(context: grpc.aio.ServicerContext[object, object], error: ServiceError) -> None:
    """End a call with an error and its details. Does not return."""
    details = (("grpc-status-details-bin", error.status().SerializeToString()),)
    await context.abort(error.code, error.message, trailing_metadata=details)
