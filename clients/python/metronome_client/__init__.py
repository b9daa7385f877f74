"""A client of Metronome: generate on an executor, look into its books, ask a scheduler for a plan.

    with InferenceClient("127.0.0.1:50052") as client:
        for event in client.generate("Once upon a time", GenerateOptions(max_tokens=64)):
            match event:
                case Delta(text=text):
                    print(text, end="", flush=True)

`AsyncInferenceClient` and `AsyncSchedulerClient` have the same methods for asyncio. Each failure of a call is a
`MetronomeError`, of a class for its reason (errors.py).
"""

from __future__ import annotations

from metronome_client.aio import AsyncInferenceClient
from metronome_client.channels import Tls
from metronome_client.details import Violation
from metronome_client.errors import (
    AlreadyExistsError,
    CancelledError,
    ColumnLengthError,
    DeadlineError,
    DeadlineExceededError,
    DrainingError,
    DuplicateError,
    DuplicateRequestIdError,
    EmptyPromptError,
    ExceedsKvCacheError,
    ExceedsModelLenError,
    FailedPreconditionError,
    InconsistentError,
    InternalError,
    InvalidArgumentError,
    InvalidConstraintError,
    InvalidLogitsError,
    InvalidTextError,
    MalformedMessageError,
    MessageTooLargeError,
    MetronomeError,
    MissingFieldError,
    ModelLoadingError,
    NoChatTemplateError,
    NotAllowedError,
    NotFoundError,
    NotOfferedError,
    NoTokenAllowedError,
    OutOfRangeError,
    PermissionDeniedError,
    PolicyConflictError,
    QueueFullError,
    RejectedBySchedulerError,
    RequestFailedError,
    ResourceExhaustedError,
    SchedulerFailedError,
    TenantOverLimitError,
    TooManyCallsError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownCallerError,
    UnknownProfileError,
    UnknownRequestIdError,
    UnknownTokenError,
    UnknownValueError,
)
from metronome_client.events import Delta, Event, Finished, FinishReason, Started, TokenLogprobs, Usage, Waiting
from metronome_client.inference import InferenceClient
from metronome_client.recording import RecordingError, TruncatedRecordingError, read_recording
from metronome_client.requests import ChatMessage, GenerateOptions, Prompt
from metronome_client.retry import RetryPolicy
from metronome_client.scheduler import AsyncSchedulerClient, SchedulerClient
from metronome_client.tables import Decision, decision, request_table

__all__ = [
    "AlreadyExistsError",
    "AsyncInferenceClient",
    "AsyncSchedulerClient",
    "CancelledError",
    "ChatMessage",
    "ColumnLengthError",
    "DeadlineError",
    "DeadlineExceededError",
    "Decision",
    "Delta",
    "DrainingError",
    "DuplicateError",
    "DuplicateRequestIdError",
    "EmptyPromptError",
    "Event",
    "ExceedsKvCacheError",
    "ExceedsModelLenError",
    "FailedPreconditionError",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "InconsistentError",
    "InferenceClient",
    "InternalError",
    "InvalidArgumentError",
    "InvalidConstraintError",
    "InvalidLogitsError",
    "InvalidTextError",
    "MalformedMessageError",
    "MessageTooLargeError",
    "MetronomeError",
    "MissingFieldError",
    "ModelLoadingError",
    "NoChatTemplateError",
    "NoTokenAllowedError",
    "NotAllowedError",
    "NotFoundError",
    "NotOfferedError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "PolicyConflictError",
    "Prompt",
    "QueueFullError",
    "RecordingError",
    "RejectedBySchedulerError",
    "RequestFailedError",
    "ResourceExhaustedError",
    "RetryPolicy",
    "SchedulerClient",
    "SchedulerFailedError",
    "Started",
    "TenantOverLimitError",
    "Tls",
    "TokenLogprobs",
    "TooManyCallsError",
    "TruncatedRecordingError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownCallerError",
    "UnknownProfileError",
    "UnknownRequestIdError",
    "UnknownTokenError",
    "UnknownValueError",
    "Usage",
    "Violation",
    "Waiting",
    "decision",
    "read_recording",
    "request_table",
]
