"""Calls by name, with requests and answers as JSON: what a scenario says, made into gRPC and back.

A call ends with an `Outcome`, whatever happens; each has a deadline, so nothing here waits for ever.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import scheduler_pb2

DEFAULT_TIMEOUT_S = 20.0
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # What is too large is the server's to refuse, so the kit sends it.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)
_DETAILS_KEY = "grpc-status-details-bin"
_SERVICES = {
    service.name: service
    for module in (scheduler_pb2, inference_pb2, executor_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a failed call says. `retry_delay_s`: None without RetryInfo; `over_quota`: subjects of QuotaFailure."""

    message: str = ""
    reason: str = ""
    domain: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    retry_delay_s: float | None = None
    over_quota: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended. `code`: the status by name; `messages`: as JSON, with the names of the proto files."""

    code: str
    messages: tuple[Json, ...] = ()
    refusal: Refusal = Refusal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Secured:
    """How the kit connects to a server that wants TLS. `credentials`: of its calls; `context`: of bare connections."""

    credentials: grpc.ChannelCredentials
    context: ssl.SSLContext


def open_channel(address: str, secured: Secured | None) -> grpc.Channel:
    """A channel of the kit's own. `secured` None: no TLS."""
    if secured is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(address, secured.credentials, options=CHANNEL_OPTIONS)


class Call(Protocol):
    """A call under way."""

    def next_message(self) -> Json | None:
        """The next message; None where the call has ended."""

    def outcome(self) -> Outcome:
        """Read to the end. All messages are in it, those that `next_message` gave too."""

    def cancel(self) -> None:
        """Leave the call."""


class Driver(Protocol):
    """Makes calls: this kit itself, or a program in another language (`driver.py`). `address`: whom it calls."""

    address: str

    def start(self, method: str, request: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Call:
        """Begin a call. `method`: "InferenceService/Generate"; `request`: JSON, a list of it on a stream, or bytes."""

    def close(self) -> None:
        """Give back what it holds."""


def method_named(name: str) -> MethodDescriptor:
    """Raises KeyError."""
    service, _, method = name.partition("/")
    found: MethodDescriptor = _SERVICES[service].methods_by_name[method]
    return found


def method_of_path(path: str) -> MethodDescriptor | None:
    """`path`: as HTTP/2 has it, "/metronome.scheduler.v1.SchedulerService/Plan". None where the contract has it not."""
    service, _, method = path.removeprefix("/").partition("/")
    found = _SERVICES.get(service.rpartition(".")[2])
    return found.methods_by_name.get(method) if found is not None and found.full_name == service else None


def request_message(method: MethodDescriptor, content: Json) -> Message:
    """Raises json_format.ParseError."""
    message = message_factory.GetMessageClass(method.input_type)()
    return json_format.ParseDict(content, message)


def as_json(message: Message) -> Json:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def refusal_from(message: str, details: bytes) -> Refusal:
    """`details`: a google.rpc.Status, or nothing."""
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    retry, quota, delay_s = error_details_pb2.RetryInfo(), error_details_pb2.QuotaFailure(), None
    for detail in status_pb2.Status.FromString(details).details:
        detail.Unpack(info)
        detail.Unpack(bad)
        detail.Unpack(quota)
        if detail.Unpack(retry):
            delay_s = retry.retry_delay.ToTimedelta().total_seconds()
    return Refusal(
        message=message,
        reason=info.reason,
        domain=info.domain,
        metadata=dict(info.metadata),
        fields=tuple(violation.field for violation in bad.field_violations),
        retry_delay_s=delay_s,
        over_quota=tuple(violation.subject for violation in quota.violations),
    )


class PythonDriver:
    """Calls one address through grpc itself, without a client in between."""

    def __init__(self, address: str, secured: Secured | None = None) -> None:
        self.address = address
        self.channel = open_channel(address, secured)

    def start(self, method: str, request: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> PythonCall:
        """As `Driver.start`."""
        descriptor = method_named(method)
        path = f"/{descriptor.containing_service.full_name}/{descriptor.name}"
        answer = message_factory.GetMessageClass(descriptor.output_type)
        contents = request if isinstance(request, list) else [request]
        payloads = [
            content if isinstance(content, bytes) else request_message(descriptor, content).SerializeToString()
            for content in contents
        ]
        if descriptor.client_streaming:
            stream = self.channel.stream_stream(path, None, answer.FromString)
            return PythonCall(stream(iter(payloads), timeout=timeout_s))
        # A stream of one message is how a unary answer looks on the wire.
        unary = self.channel.unary_stream(path, None, answer.FromString)
        return PythonCall(unary(payloads[0], timeout=timeout_s))

    def close(self) -> None:
        """Close the channel."""
        self.channel.close()


class PythonCall:
    """A call of grpc."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._messages: list[Json] = []
        self._failed = False

    def next_message(self) -> Json | None:
        """As `Call.next_message`."""
        try:
            message = as_json(next(self._call))
        except StopIteration:
            return None
        except grpc.RpcError:
            return None
        self._messages.append(message)
        return message

    def outcome(self) -> Outcome:
        """As `Call.outcome`."""
        while self.next_message() is not None:
            pass
        details = dict(self._call.trailing_metadata() or ()).get(_DETAILS_KEY, b"")
        return Outcome(
            code=self._call.code().name,
            messages=tuple(self._messages),
            refusal=refusal_from(self._call.details() or "", details),
        )

    def cancel(self) -> None:
        """As `Call.cancel`."""
        self._call.cancel()


def deltas(messages: Sequence[Json]) -> Iterator[Json]:
    """The deltas of an answer."""
    return (message["delta"] for message in messages if "delta" in message)


def answer_facts(outcome: Outcome) -> dict[str, Any]:
    """What later steps can name of an answer: its text, tokens, and the first and last message."""
    facts: dict[str, Any] = {
        "text": "".join(delta.get("text", "") for delta in deltas(outcome.messages)),
        "token_ids": [token for delta in deltas(outcome.messages) for token in delta.get("token_ids", ())],
    }
    for message in outcome.messages:
        facts |= {key: message[key] for key in ("started", "finished") if key in message}
    if outcome.messages:
        facts["response"] = outcome.messages[-1]
    return facts
