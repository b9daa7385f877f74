from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_MISSING_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_COLUMN_LENGTH: _ClassVar[ErrorReason]
    ERROR_REASON_DUPLICATE: _ClassVar[ErrorReason]
    ERROR_REASON_OUT_OF_RANGE: _ClassVar[ErrorReason]
    ERROR_REASON_INCONSISTENT: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_VALUE: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_PROFILE: _ClassVar[ErrorReason]
    ERROR_REASON_POLICY_CONFLICT: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_OFFERED: _ClassVar[ErrorReason]
    ERROR_REASON_MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
    ERROR_REASON_MALFORMED_MESSAGE: _ClassVar[ErrorReason]
    ERROR_REASON_SCHEDULER_FAILED: _ClassVar[ErrorReason]
    ERROR_REASON_UNKNOWN_CALLER: _ClassVar[ErrorReason]
    ERROR_REASON_DRAINING: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_MISSING_FIELD: ErrorReason
ERROR_REASON_COLUMN_LENGTH: ErrorReason
ERROR_REASON_DUPLICATE: ErrorReason
ERROR_REASON_OUT_OF_RANGE: ErrorReason
ERROR_REASON_INCONSISTENT: ErrorReason
ERROR_REASON_UNKNOWN_VALUE: ErrorReason
ERROR_REASON_UNKNOWN_PROFILE: ErrorReason
ERROR_REASON_POLICY_CONFLICT: ErrorReason
ERROR_REASON_NOT_OFFERED: ErrorReason
ERROR_REASON_MESSAGE_TOO_LARGE: ErrorReason
ERROR_REASON_MALFORMED_MESSAGE: ErrorReason
ERROR_REASON_SCHEDULER_FAILED: ErrorReason
ERROR_REASON_UNKNOWN_CALLER: ErrorReason
ERROR_REASON_DRAINING: ErrorReason
