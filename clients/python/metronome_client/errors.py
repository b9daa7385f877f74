"""The errors of calls, as classes.

    MetronomeError                  code, reason, metadata, what is at fault, when to try again
    ├── InvalidArgumentError        one class for each status code that the services use,
    │   ├── ExceedsModelLenError    and below it one for each reason of the contract
    │   └── ...
    ├── UnavailableError
    └── ...

A reason that this client is too old to know is an error of its status code's class. An error without a reason comes
from the transport (nobody listens, the connection broke, the certificate was refused) or from a deadline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from metronome_client.details import Details, Violation, read_details

_DETAILS_KEY = "grpc-status-details-bin"
# gRPC refuses a message over a limit before the service sees it, in words of its own and without details.
_TOO_LARGE = re.compile(r"(message|size) larger than", re.IGNORECASE)


class MetronomeError(Exception):
    """A call that failed.

    `reason` is a name of the contract's `ErrorReason` without its prefix ("EXCEEDS_MODEL_LEN"), or empty; `metadata`
    has the figures that belong to it; `field_violations` name the fields at fault, `quota_violations` whose limit was
    reached. `retry_delay_s`: when to come again; None where the service does not say.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str,
        message: str,
        metadata: Mapping[str, str],
        *,
        domain: str = "",
        field_violations: tuple[Violation, ...] = (),
        quota_violations: tuple[Violation, ...] = (),
        retry_delay_s: float | None = None,
    ) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.reason = reason
        self.message = message or code.name
        self.metadata = dict(metadata)
        self.domain = domain
        self.field_violations = field_violations
        self.quota_violations = quota_violations
        self.retry_delay_s = retry_delay_s


class CancelledError(MetronomeError):
    """The request was cancelled, by whoever knows its id."""


class InvalidArgumentError(MetronomeError):
    """The request is at fault; sent again it fails again."""


class ColumnLengthError(InvalidArgumentError):
    """A column of a table has another length than `id`."""


class DuplicateError(InvalidArgumentError):
    """An id or name stands twice."""


class EmptyPromptError(InvalidArgumentError):
    """There is no prompt."""


class ExceedsKvCacheError(InvalidArgumentError):
    """The request needs more KV blocks than the executor has."""


class ExceedsModelLenError(InvalidArgumentError):
    """Prompt and answer are longer than the model takes."""


class InconsistentError(InvalidArgumentError):
    """Figures of a state contradict each other."""


class InvalidConstraintError(InvalidArgumentError):
    """The schema, expression or grammar cannot be used."""


class InvalidTextError(InvalidArgumentError):
    """No tokenizer can take the text, or no template the conversation."""


class MalformedMessageError(InvalidArgumentError):
    """The bytes are no message of the contract."""


class MissingFieldError(InvalidArgumentError):
    """A required field or column is missing."""


class NoTokenAllowedError(InvalidArgumentError):
    """The request's own rules left no token to choose."""


class OutOfRangeError(InvalidArgumentError):
    """A number is out of its range."""


class PolicyConflictError(InvalidArgumentError):
    """Settings of the policy exclude each other."""


class UnknownProfileError(InvalidArgumentError):
    """No profile has that name."""


class UnknownTokenError(InvalidArgumentError):
    """A token id is not in the vocabulary."""


class UnknownValueError(InvalidArgumentError):
    """The service does not know an enum value."""


class DeadlineExceededError(MetronomeError):
    """The deadline passed: the service said so, or did not answer in time."""


class DeadlineError(DeadlineExceededError):
    """The executor ended the request at its deadline."""


class NotFoundError(MetronomeError):
    """It is not there."""


class UnknownRequestIdError(NotFoundError):
    """No request of this id is in the executor."""


class AlreadyExistsError(MetronomeError):
    """It is there already."""


class DuplicateRequestIdError(AlreadyExistsError):
    """A request of this id is in the executor."""


class PermissionDeniedError(MetronomeError):
    """The token lacks a right."""


class NotAllowedError(PermissionDeniedError):
    """The caller may act for its own tenant alone."""


class UnauthenticatedError(MetronomeError):
    """There is no token, or a wrong one."""


class UnknownCallerError(UnauthenticatedError):
    """The service does not know the token, or the certificate."""


class ResourceExhaustedError(MetronomeError):
    """A limit was reached. `retry_delay_s` says when to come again; None: that is of no use."""


class MessageTooLargeError(ResourceExhaustedError):
    """The message is larger than the other side, or this client, takes."""


class QueueFullError(ResourceExhaustedError):
    """The executor's queue is full."""


class RejectedBySchedulerError(ResourceExhaustedError):
    """The scheduler turned the request away; `metadata` has its reason."""


class TenantOverLimitError(ResourceExhaustedError):
    """The tenant is at a limit of its own; `metadata` has which."""


class TooManyCallsError(ResourceExhaustedError):
    """As many answers are being generated as the executor takes at once."""


class FailedPreconditionError(MetronomeError):
    """The service is not made for it."""


class NoChatTemplateError(FailedPreconditionError):
    """The model has no chat template."""


class UnimplementedError(MetronomeError):
    """The service does not have it."""


class NotOfferedError(UnimplementedError):
    """A part of the contract that this service does not offer."""


class InternalError(MetronomeError):
    """The service failed."""


class InvalidLogitsError(InternalError):
    """The model gave logits that are no numbers."""


class RequestFailedError(InternalError):
    """This request failed in the executor."""


class SchedulerFailedError(InternalError):
    """The scheduler failed at this call."""


class UnavailableError(MetronomeError):
    """Nobody answers, the connection broke, its certificate was refused, or the service takes nothing now."""


class DrainingError(UnavailableError):
    """The service drains or has stopped."""


class ModelLoadingError(UnavailableError):
    """The executor's model is loading."""


def _reason_of(error: type[MetronomeError]) -> str:
    """`QueueFullError` stands for QUEUE_FULL."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__.removesuffix("Error")).upper()


_BY_CODE: dict[str, type[MetronomeError]] = {_reason_of(error): error for error in MetronomeError.__subclasses__()}
_BY_REASON: dict[str, type[MetronomeError]] = {
    _reason_of(error): error for parent in _BY_CODE.values() for error in parent.__subclasses__()
} | {"CANCELLED": CancelledError}


def error_from_call(error: grpc.RpcError) -> MetronomeError:
    """Read the status of a failed call; sync and asyncio errors of grpc offer it alike."""
    return error_from_status(error.code(), error.details() or "", details_of(error.trailing_metadata()))


def error_from_status(code: grpc.StatusCode, message: str, details: Details) -> MetronomeError:
    """The error of the class of its reason, or else of its code."""
    reason = details.reason
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not reason and _TOO_LARGE.search(message):
        reason = "MESSAGE_TOO_LARGE"
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code.name, MetronomeError)
    return kind(
        code,
        reason,
        message,
        details.metadata,
        domain=details.domain,
        field_violations=details.field_violations,
        quota_violations=details.quota_violations,
        retry_delay_s=details.retry_delay_s,
    )


def details_of(trailing_metadata: object) -> Details:
    """What a status says beside its code and message."""
    pairs = trailing_metadata if trailing_metadata is not None else ()
    for key, value in pairs:  # type: ignore[attr-defined]  # grpc's metadata: a tuple of pairs, or an aio.Metadata
        if key == _DETAILS_KEY:
            return read_details(value)
    return Details()


@contextmanager
def raising_metronome_errors() -> Iterator[None]:
    """Turn the errors of calls inside into `MetronomeError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_call(error) from None
