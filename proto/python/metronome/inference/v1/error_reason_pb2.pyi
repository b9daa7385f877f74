from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_EMPTY_PROMPT: _ClassVar[ErrorReason]
    ERROR_REASON_EXCEEDS_MODEL_LEN: _ClassVar[ErrorReason]
    ERROR_REASON_EXCEEDS_KV_CACHE: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_RANGE: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_TOKEN: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_TEXT: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE_REQUEST_ID: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_REQUEST_ID: _ClassVar[ErrorReason]
    ERROR_REASON_NO_CHAT_TEMPLATE: _ClassVar[ErrorReason]
    ERROR_REASON_QUEUE_FULL: _ClassVar[ErrorReason]
    ERROR_REASON_MODEL_LOADING: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE: _ClassVar[ErrorReason]
    ERROR_REASON_CANCELLED: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_LOGITS: _ClassVar[ErrorReason]
    ERROR_REASON_REQUEST_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_OFFERED: _ClassVar[ErrorReason]
    ERROR_REASON_REJECTED_BY_SCHEDULER: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_CONSTRAINT: _ClassVar[ErrorReason]
    ERROR_REASON_NO_TOKEN_ALLOWED: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED_MESSAGE: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_CALLER: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_ALLOWED: _ClassVar[ErrorReason]
    ERROR_REASON_TENANT_OVER_LIMIT: _ClassVar[ErrorReason]
    ERROR_REASON_TOO_MANY_CALLS: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_EMPTY_PROMPT: ErrorReason
ERROR_REASON_EXCEEDS_MODEL_LEN: ErrorReason
ERROR_REASON_EXCEEDS_KV_CACHE: ErrorReason
ERROR_REASON_OUT_OF_RANGE: ErrorReason
ERROR_REASON_UNKNOWN_TOKEN: ErrorReason
ERROR_REASON_INVALID_TEXT: ErrorReason
ERROR_REASON_DUPLICATE_REQUEST_ID: ErrorReason
ERROR_REASON_UNKNOWN_REQUEST_ID: ErrorReason
ERROR_REASON_NO_CHAT_TEMPLATE: ErrorReason
ERROR_REASON_QUEUE_FULL: ErrorReason
ERROR_REASON_MODEL_LOADING: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
ERROR_REASON_DEADLINE: ErrorReason
ERROR_REASON_CANCELLED: ErrorReason
ERROR_REASON_INVALID_LOGITS: ErrorReason
ERROR_REASON_REQUEST_FAILED: ErrorReason
ERROR_REASON_NOT_OFFERED: ErrorReason
ERROR_REASON_REJECTED_BY_SCHEDULER: ErrorReason
ERROR_REASON_INVALID_CONSTRAINT: ErrorReason
ERROR_REASON_NO_TOKEN_ALLOWED: ErrorReason
ERROR_REASON_MALFORMED_MESSAGE: ErrorReason
ERROR_REASON_UNKNOWN_CALLER: ErrorReason
ERROR_REASON_NOT_ALLOWED: ErrorReason
ERROR_REASON_TENANT_OVER_LIMIT: ErrorReason
ERROR_REASON_TOO_MANY_CALLS: ErrorReason
