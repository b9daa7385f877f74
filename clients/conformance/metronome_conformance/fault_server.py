"""A server that goes wrong as it is told, to see what a client makes of it.

It offers all services of the contract, with the same short answers to everybody. How it is, as a scenario's `servers`
says:

    listens: false              nobody is there
    answers: false              it takes connections and never says a word
    certificate: KIND           it speaks TLS: `trusted`, of `another name`, of a `stranger`
    token: right                who does not bring this token is UNAUTHENTICATED
    max_message_bytes: 1024     larger requests are refused
    min_ping_interval_s: 9.5    who pings more often is shut out
    health: NOT_SERVING         what it says of itself; `none`: it has no health service; SERVING unless said
    strange_events: true        an event that no client knows comes after the first
    address: HOST:PORT          what clients are told instead of its address
    script: [...]               what it does at each call that comes; afterwards it answers

An action of the script is `answer`, or a mapping: `messages` (how many of the answer come first, 0 unless said) and

    refuse: {code, reason, message, metadata, fields, over_quota, retry_s, domain, details}
    cut: true                   the connection breaks
    vanish: true                nothing passes any more, and nothing ends
    stop: true                  the server ends
    silent: true                nothing more comes
    pause_s: 30                 the rest of the answer comes after that time
    bytes: 'ff ff'              bytes that are no message come
    oversized: 70_000_000       a message of so many bytes comes
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf import duration_pb2, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2
from metronome_conformance.certificates import certificates
from metronome_conformance.line import Line
from metronome_conformance.wire import method_of_path

DOMAINS = {"metronome.scheduler.v1": "scheduler.metronome"}
_EXECUTORS_DOMAIN = "executor.metronome"
# An event that no client knows: field 15 of GenerateResponse, empty.
_STRANGE_EVENT = b"\x7a\x00"
_DETAILS_KEY = "grpc-status-details-bin"
_POLL_S = 0.05

_PLAN = scheduler_pb2.PlanResponse(plans=[plan_pb2.ExecutorPlan(executor_id="e")])
_ANSWERS: Mapping[str, tuple[Message, ...]] = {
    "Generate": (
        inference_pb2.GenerateResponse(started=inference_pb2.Started(request_id="r", num_prompt_tokens=1)),
        inference_pb2.GenerateResponse(sequence=1, delta=inference_pb2.Delta(text="one", token_ids=[1])),
        inference_pb2.GenerateResponse(sequence=2, delta=inference_pb2.Delta(text=" two", token_ids=[2])),
        inference_pb2.GenerateResponse(
            sequence=3, finished=inference_pb2.Finished(finish_reason=inference_pb2.FINISH_REASON_LENGTH)
        ),
    ),
    "Tokenize": (inference_pb2.TokenizeResponse(token_ids=[1, 2]),),
    "Detokenize": (inference_pb2.DetokenizeResponse(text="one two"),),
    "GetModelInfo": (inference_pb2.GetModelInfoResponse(model="none"),),
    "WatchState": (executor_pb2.WatchStateResponse(), executor_pb2.WatchStateResponse()),
    "Plan": (_PLAN,),
    "ListProfiles": (scheduler_pb2.ListProfilesResponse(profiles=[scheduler_pb2.Profile(name="fifo")]),),
}


class FaultServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # no generic class when it runs
    """One address. `calls`: the names of the methods called; `num_left`: silent calls that their client left."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._spec = spec
        self._script = list(spec.get("script", ()))
        self._lock, self._over = threading.Lock(), threading.Event()
        self.calls: list[str] = []
        self.num_left = 0
        self._server: grpc.Server | None = None
        port = None
        if spec.get("listens", True) and spec.get("answers", True):
            port = self._serve()
        self._line = Line(port, listens=spec.get("listens", True))
        host = "localhost" if "certificate" in spec else "127.0.0.1"
        self.address = spec.get("address", f"{host}:{self._line.port}")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of any method of the contract."""
        method = method_of_path(handler_call_details.method)
        if method is None:
            return None
        token = dict(handler_call_details.invocation_metadata).get("authorization", "")

        def answer(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            if "token" in self._spec and token != f"Bearer {self._spec['token']}":
                self._refuse(
                    context, {"code": "UNAUTHENTICATED", "reason": "UNKNOWN_CALLER", "message": "no such token"}, method
                )
            yield from self._answer(method, request, context)

        # A stream of one message is how a unary answer looks on the wire.
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(answer)
        return grpc.unary_stream_rpc_method_handler(answer)

    def say(self, status: str) -> None:
        """Tell health, of all services."""
        value = health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        for service in ("", *_service_names()):
            self._health.set(service, value)

    def close(self) -> None:
        """End it, and every call."""
        self._over.set()
        self._line.close()
        if self._server is not None:
            self._server.stop(None).wait()

    def _serve(self) -> int:
        pings_ms = int(self._spec.get("min_ping_interval_s", 5) * 1000)
        options = [
            ("grpc.http2.min_ping_interval_without_data_ms", pings_ms),
            ("grpc.http2.max_ping_strikes", 1),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_receive_message_length", self._spec.get("max_message_bytes", -1)),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.server(ThreadPoolExecutor(8), handlers=[self], options=options)
        self._health = health.HealthServicer()
        if self._spec.get("health") != "none":
            self.say(self._spec.get("health", "SERVING"))
            health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if "certificate" in self._spec:
            port = self._server.add_secure_port("127.0.0.1:0", certificates().servers[self._spec["certificate"]])
        else:
            port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return port

    def _answer(self, method: MethodDescriptor, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._lock:
            self.calls.append(method.name)
            action: Mapping[str, Any] | str = self._script.pop(0) if self._script else "answer"
        if "silent" in action:  # nothing but its client's leaving ends it
            context.add_callback(self._count_left)
        messages = (_PLAN for _ in request) if method.client_streaming else iter(_answers(method))
        most = None if isinstance(action, str) else action.get("messages", 0)
        for number, message in enumerate(itertools.islice(messages, most), start=1):
            yield message.SerializeToString()
            if self._spec.get("strange_events") and number == 1:
                yield _STRANGE_EVENT
        if "pause_s" in action and not isinstance(action, str):
            self._over.wait(action["pause_s"])
            yield from (message.SerializeToString() for message in messages)
        elif not isinstance(action, str):
            yield from self._do(action, method, context)

    def _do(
        self, action: Mapping[str, Any], method: MethodDescriptor, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        if "refuse" in action:
            self._refuse(context, action["refuse"], method)
        elif "bytes" in action:
            yield bytes.fromhex(action["bytes"])
        elif "oversized" in action:
            yield bytes(action["oversized"])
        else:
            if "cut" in action:
                self._line.cut()
            elif "vanish" in action:
                self._line.vanish()
            elif "stop" in action and self._server is not None:
                self._server.stop(None)
            while context.is_active() and not self._over.wait(_POLL_S):
                pass  # silent

    def _count_left(self) -> None:
        with self._lock:
            self.num_left += not self._over.is_set()

    def _refuse(self, context: grpc.ServicerContext, refusal: Mapping[str, Any], method: MethodDescriptor) -> None:
        """Ends the call."""
        code = grpc.StatusCode[refusal["code"]]
        if "details" in refusal:
            context.set_trailing_metadata(((_DETAILS_KEY, bytes.fromhex(refusal["details"])),))
        elif "reason" in refusal:
            context.set_trailing_metadata(((_DETAILS_KEY, _status(code, refusal, method).SerializeToString()),))
        context.abort(code, refusal.get("message", "so it is told"))


def _status(code: grpc.StatusCode, refusal: Mapping[str, Any], method: MethodDescriptor) -> status_pb2.Status:
    message = refusal.get("message", "so it is told")
    status = status_pb2.Status(code=code.value[0], message=message)
    domain = refusal.get("domain", DOMAINS.get(method.containing_service.file.package, _EXECUTORS_DOMAIN))
    info = error_details_pb2.ErrorInfo(reason=refusal["reason"], domain=domain, metadata=refusal.get("metadata", {}))
    status.details.add().Pack(info)
    if "fields" in refusal:
        fields = [error_details_pb2.BadRequest.FieldViolation(field=f, description=message) for f in refusal["fields"]]
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=fields))
    if "over_quota" in refusal:
        subjects = [
            error_details_pb2.QuotaFailure.Violation(subject=s, description=message) for s in refusal["over_quota"]
        ]
        status.details.add().Pack(error_details_pb2.QuotaFailure(violations=subjects))
    if "retry_s" in refusal:
        delay = duration_pb2.Duration(nanos=int(refusal["retry_s"] % 1 * 1e9), seconds=int(refusal["retry_s"]))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status


def _answers(method: MethodDescriptor) -> Sequence[Message]:
    return _ANSWERS.get(method.name) or (message_factory.GetMessageClass(method.output_type)(),)


def _service_names() -> Iterator[str]:
    for module in (scheduler_pb2, inference_pb2, executor_pb2):
        yield from (service.full_name for service in module.DESCRIPTOR.services_by_name.values())
