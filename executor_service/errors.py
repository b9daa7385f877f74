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

from executor_service.engine.request import EndCause, EndedEvent
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
    pb.ERROR_REASON_MALFORMED_MESSAGE: grpc.StatusCode.INVALID_ARGUMENT,
    pb.ERROR_REASON_UNKNOWN_CALLER: grpc.StatusCode.UNAUTHENTICATED,
    pb.ERROR_REASON_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    pb.ERROR_REASON_TENANT_OVER_LIMIT: grpc.StatusCode.RESOURCE_EXHAUSTED,
    pb.ERROR_REASON_TOO_MANY_CALLS: grpc.StatusCode.RESOURCE_EXHAUSTED,
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

# A scheduler's estimate is not believed beyond this.
_MAX_WAIT_US = 3_600_000_000
# When to come again, where nothing better is known.
RETRY_AFTER = timedelta(seconds=1)

# Rejections that coming again does not help: the request can never run, or not in time.
_FINAL_REJECTIONS = frozenset({"REJECTED_EXCEEDS_BLOCKS", "REJECTED_EXCEEDS_MODEL_LEN", "REJECTED_DEADLINE"})


class ServiceError(Exception):
    """What went wrong, in the contract's terms. ``field`` is the path of the request's field that is at fault.

    ``retry_after`` is told with every UNAVAILABLE, and with RESOURCE_EXHAUSTED where coming again can help.
    ``over_quota`` names whose limit was reached.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        field: str = "",
        metadata: Mapping[str, str] | None = None,
        retry_after: timedelta | None = None,
        over_quota: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.metadata = dict(metadata or {})
        if retry_after is None and self.code is grpc.StatusCode.UNAVAILABLE:
            retry_after = RETRY_AFTER
        self.retry_after = retry_after
        self.over_quota = over_quota

    @property
    def reason_name(self) -> str:
        """As it is on the wire."""
        return pb.ErrorReason.Name(self.reason).removeprefix("ERROR_REASON_")

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
        if self.over_quota:
            over = error_details_pb2.QuotaFailure.Violation(subject=self.over_quota, description=self.message)
            status.details.add().Pack(error_details_pb2.QuotaFailure(violations=[over]))
        return status


def error_of_ending(event: EndedEvent, *, tenant: str) -> ServiceError:
    """``tenant``: whose request it was."""
    message, rejection = f"the request ended: {event.detail}", event.rejection
    if rejection is None:
        return ServiceError(_REASONS_OF_ENDINGS[event.cause], message)
    wait = timedelta(microseconds=min(max(rejection.estimated_wait_us, 0), _MAX_WAIT_US))
    of_tenant = rejection.reason == "REJECTED_TENANT_QUEUE_FULL"
    return ServiceError(
        _REASONS_OF_ENDINGS[event.cause],
        message,
        metadata={
            "scheduler_reason": rejection.reason,
            "needed": str(rejection.needed),
            "available": str(rejection.available),
        },
        retry_after=None if rejection.reason in _FINAL_REJECTIONS else max(wait, RETRY_AFTER),
        over_quota=f"tenant:{tenant}" if of_tenant else "",
    )


async def abort(context: grpc.aio.ServicerContext[object, object], error: ServiceError) -> None:
    """End a call with an error and its details. Does not return."""
    details = (("grpc-status-details-bin", error.status().SerializeToString()),)
    await context.abort(error.code, error.message, trailing_metadata=details)


async def abort_malformed(context: grpc.aio.ServicerContext[object, object]) -> None:
    """End a call whose request is no message. No field is at fault: there are none."""
    message = "the message is not valid protobuf of its type; strings must be UTF-8"
    await abort(context, ServiceError(pb.ERROR_REASON_MALFORMED_MESSAGE, message))


async def abort_failed(context: grpc.aio.ServicerContext[object, object]) -> None:
    """End a call at which we failed ourselves."""
    message = "the executor failed at this call by a fault of its own; its log has the cause"
    await abort(context, ServiceError(pb.ERROR_REASON_REQUEST_FAILED, message))
