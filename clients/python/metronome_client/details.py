"""The details of a gRPC status, read without the package that has `google.rpc`: it need not be installed.

The messages here have the wire format of google/rpc/status.proto and error_details.proto, as far as the contract uses
them, under a package of their own so that they get along with the originals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory
from google.protobuf.message import DecodeError

_PACKAGE = "metronome_client.details"
_STRING, _INT32, _MESSAGE = 9, 5, 11

# message: its fields as (name, number, type, repeated, message type)
_FIELDS: Mapping[str, tuple[tuple[str, int, int, bool, str], ...]] = {
    "Status": (
        ("code", 1, _INT32, False, ""),
        ("message", 2, _STRING, False, ""),
        ("details", 3, _MESSAGE, True, ".google.protobuf.Any"),
    ),
    "Entry": (("key", 1, _STRING, False, ""), ("value", 2, _STRING, False, "")),
    "ErrorInfo": (
        ("reason", 1, _STRING, False, ""),
        ("domain", 2, _STRING, False, ""),
        ("metadata", 3, _MESSAGE, True, f".{_PACKAGE}.Entry"),
    ),
    # BadRequest.FieldViolation and QuotaFailure.Violation look alike, and so do the messages that list them.
    "Violation": (("subject", 1, _STRING, False, ""), ("description", 2, _STRING, False, "")),
    "Violations": (("violations", 1, _MESSAGE, True, f".{_PACKAGE}.Violation"),),
    "RetryInfo": (("retry_delay", 1, _MESSAGE, False, ".google.protobuf.Duration"),),
}


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong, and with what: a field by its path, or whose quota (`tenant:NAME`)."""

    subject: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What an error says besides its code and sentence. `retry_delay_s`: None where the service says none."""

    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    field_violations: tuple[Violation, ...] = ()
    quota_violations: tuple[Violation, ...] = ()
    retry_delay_s: float | None = None


def read_details(status: bytes) -> Details:
    """Read `grpc-status-details-bin`. What cannot be read is as good as not there."""
    found: dict[str, Any] = {}
    try:
        for detail in _CLASSES["Status"].FromString(status).details:
            match detail.type_url.rpartition("/")[2]:
                case "google.rpc.ErrorInfo":
                    info = _CLASSES["ErrorInfo"].FromString(detail.value)
                    metadata = {entry.key: entry.value for entry in info.metadata}
                    found |= {"reason": info.reason, "domain": info.domain, "metadata": metadata}
                case "google.rpc.BadRequest":
                    found["field_violations"] = _violations(detail.value)
                case "google.rpc.QuotaFailure":
                    found["quota_violations"] = _violations(detail.value)
                case "google.rpc.RetryInfo":
                    delay = _CLASSES["RetryInfo"].FromString(detail.value).retry_delay
                    found["retry_delay_s"] = delay.seconds + delay.nanos / 1e9
    except DecodeError:
        return Details()
    return Details(**found)


def _violations(content: bytes) -> tuple[Violation, ...]:
    message = _CLASSES["Violations"].FromString(content)
    return tuple(Violation(violation.subject, violation.description) for violation in message.violations)


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="metronome_client/details.proto", package=_PACKAGE, syntax="proto3")
    file.dependency.extend([any_pb2.DESCRIPTOR.name, duration_pb2.DESCRIPTOR.name])
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, is_repeated, of in fields:
            entry = message.field.add(name=field_name, number=number, label=3 if is_repeated else 1)
            entry.type = kind  # type: ignore[assignment]
            if of:
                entry.type_name = of
    pool = descriptor_pool.Default()  # the one that has Any and Duration
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_CLASSES = _classes()


def write_details(code: int, message: str, details: Details) -> bytes:
    """Write `grpc-status-details-bin`, as a service does."""
    status = _CLASSES["Status"](code=code, message=message)

    def add(name: str, content: Any) -> None:
        status.details.add(type_url=f"type.googleapis.com/google.rpc.{name}", value=content.SerializeToString())

    entries = [_CLASSES["Entry"](key=key, value=value) for key, value in details.metadata.items()]
    add("ErrorInfo", _CLASSES["ErrorInfo"](reason=details.reason, domain=details.domain, metadata=entries))
    for name, violations in (("BadRequest", details.field_violations), ("QuotaFailure", details.quota_violations)):
        if violations:
            rows = [_CLASSES["Violation"](subject=row.subject, description=row.description) for row in violations]
            add(name, _CLASSES["Violations"](violations=rows))
    if details.retry_delay_s is not None:
        delay = duration_pb2.Duration(seconds=int(details.retry_delay_s), nanos=int(details.retry_delay_s % 1 * 1e9))
        add("RetryInfo", _CLASSES["RetryInfo"](retry_delay=delay))
    return bytes(status.SerializeToString())
