"""What can go wrong between a client and a server: the right error, in time, and again only where that is allowed."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import numpy as np
import pytest
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

import metronome_client as api
from metronome.inference.v1 import error_reason_pb2 as inference_reasons
from metronome.inference.v1 import inference_pb2, inference_pb2_grpc
from metronome.scheduler.v1 import error_reason_pb2 as scheduler_reasons
from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, scheduler_pb2_grpc, state_pb2
from metronome_client.channels import CHANNEL_OPTIONS
from metronome_client.errors import error_from_status
from metronome_client.inference import SERVICE
from metronome_client.retry import Attempts
from support.certificates import Authority
from support.fake_services import FakeExecutor
from support.fake_services import serving as serving_fake

FAST = api.RetryPolicy(initial_backoff_s=0.01, max_backoff_s=0.05)
ONCE = api.RetryPolicy(max_attempts=1)


def end(context: grpc.ServicerContext, code: grpc.StatusCode, reason: str, retry_s: float | None = None) -> None:
    """End a call as a service does."""
    status = status_pb2.Status(code=code.value[0], message=f"{reason} it is")
    details = [error_details_pb2.ErrorInfo(reason=reason, domain="executor.metronome")]
    if retry_s is not None:
        delay = Duration(nanos=int(retry_s * 1e9))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    for detail in details:
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.abort_with_status(rpc_status.to_status(status))


class Scripted(inference_pb2_grpc.InferenceServiceServicer):
    """Does the next thing of its script at each call: a function that ends the call, or None to answer."""

    def __init__(self, *script: Callable[[grpc.ServicerContext], None] | None) -> None:
        self.script = list(script)
        self.num_calls = 0
        self.release = threading.Event()

    def _next(self, context: grpc.ServicerContext) -> None:
        self.num_calls += 1
        step = self.script.pop(0) if self.script else None
        if step is not None:
            step(context)

    def Generate(self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext):
        if request.text == "breaks":
            yield inference_pb2.GenerateResponse(started=inference_pb2.Started())
        self._next(context)
        if request.text == "silent":
            self.release.wait(10)
        yield inference_pb2.GenerateResponse(started=inference_pb2.Started(request_id="r"))
        yield inference_pb2.GenerateResponse(sequence=1, delta=inference_pb2.Delta(text="a", token_ids=[1]))
        yield inference_pb2.GenerateResponse(sequence=2, finished=inference_pb2.Finished())

    def Tokenize(self, request: inference_pb2.TokenizeRequest, context: grpc.ServicerContext):
        self._next(context)
        return inference_pb2.TokenizeResponse(token_ids=[1, 2])


@contextmanager
def serving(servicer: Scripted, credentials: grpc.ServerCredentials | None = None) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", 1024 * 1024)])
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.health = health.HealthServicer()
    servicer.health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer.health, server)
    place = "localhost:0" if credentials else "127.0.0.1:0"
    port = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    server.start()
    servicer.server = server
    try:
        yield f"{place.partition(':')[0]}:{port}"
    finally:
        servicer.release.set()
        server.stop(None).wait()


def sync_generate(address, prompt: str = "x", **settings):
    timeout_s = settings.pop("timeout_s", 10)
    with api.InferenceClient(address, **{"retry": FAST} | settings) as client:
        return list(client.generate(prompt, timeout_s=timeout_s))


def async_generate(address, prompt: str = "x", **settings):
    timeout_s = settings.pop("timeout_s", 10)

    async def collect():
        async with api.AsyncInferenceClient(address, **{"retry": FAST} | settings) as client:
            return [event async for event in client.generate(prompt, timeout_s=timeout_s)]

    return asyncio.run(collect())


both = pytest.mark.parametrize("generate", [sync_generate, async_generate])


def draining(context):
    end(context, grpc.StatusCode.UNAVAILABLE, "DRAINING", 0.01)


def loading(context):
    end(context, grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING", 0.01)


def full(context):
    end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 0.01)


def rejected(context):
    end(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "REJECTED_BY_SCHEDULER")


def failed(context):
    end(context, grpc.StatusCode.INTERNAL, "REQUEST_FAILED")


@both
@pytest.mark.parametrize("fault", [loading, full])
def test_what_may_be_tried_again_is(generate, fault):
    servicer = Scripted(fault, fault)
    with serving(servicer) as address:
        events = generate(address)
    assert [type(event) for event in events] == [api.Started, api.Delta, api.Finished]
    assert servicer.num_calls == 3


@both
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (draining, api.DrainingError),
        (rejected, api.RejectedBySchedulerError),
        (failed, api.RequestFailedError),
    ],
)
def test_what_may_not_be_tried_again_is_not(generate, fault, error):
    servicer = Scripted(fault)
    with serving(servicer) as address, pytest.raises(error) as caught:
        generate(address)
    assert servicer.num_calls == 1
    assert caught.value.message.endswith("it is")


@both
def test_tries_have_an_end(generate):
    servicer = Scripted(*[full] * 9)
    with serving(servicer) as address, pytest.raises(api.QueueFullError) as caught:
        generate(address)
    assert servicer.num_calls == FAST.max_attempts
    assert caught.value.retry_delay_s == pytest.approx(0.01)


@both
def test_nothing_is_begun_again_once_an_event_came(generate):
    servicer = Scripted(loading)
    with serving(servicer) as address, pytest.raises(api.ModelLoadingError):
        generate(address, "breaks")
    assert servicer.num_calls == 1


@both
def test_a_server_that_is_late_ends_with_the_deadline(generate):
    with serving(Scripted()) as address, pytest.raises(api.DeadlineExceededError):
        generate(address, "silent", timeout_s=0.3)


@both
def test_a_port_that_accepts_and_says_nothing_ends_with_the_deadline(generate):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises((api.DeadlineExceededError, api.UnavailableError)):
            generate(address, timeout_s=0.5, retry=ONCE)


@both
def test_a_server_that_goes_away_in_the_midst_of_an_answer(generate):
    servicer = Scripted()
    servicer.script = [lambda context: servicer.server.stop(None)]
    with serving(servicer) as address, pytest.raises((api.UnavailableError, api.CancelledError)):
        generate(address, "breaks")


@both
def test_a_message_that_is_too_large(generate):
    with serving(Scripted()) as address, pytest.raises(api.MessageTooLargeError) as caught:
        generate(address, "x" * 2**21)
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


@both
def test_an_address_that_is_not_there_is_passed_over(generate):
    with serving(Scripted()) as address:
        assert len(generate(["127.0.0.1:1", address])) == 3


@both
def test_one_that_does_not_serve_is_passed_over(generate):
    first, second = Scripted(), Scripted()
    with serving(first) as one, serving(second) as other:
        first.health.set(SERVICE, health_pb2.HealthCheckResponse.NOT_SERVING)
        for _ in range(3):
            generate([one, other])
    assert (first.num_calls, second.num_calls) == (0, 3)


def test_calls_go_round():
    first, second = Scripted(), Scripted()
    with serving(first) as one, serving(second) as other:
        deadline = time.monotonic() + 10
        with api.InferenceClient([one, other]) as client:
            while min(first.num_calls, second.num_calls) < 2:
                client.tokenize("x")
                assert time.monotonic() < deadline
            num_first = first.num_calls
            for _ in range(10):
                client.tokenize("x")
    assert first.num_calls - num_first == 5


@both
def test_a_certificate_that_is_not_trusted_and_one_of_another_name(generate, tmp_path):
    authority, stranger = Authority(tmp_path / "authority"), Authority(tmp_path / "stranger")
    identity, root = authority.sign("server", "localhost"), authority.ca.read_bytes()
    credentials = grpc.ssl_server_credentials([(identity.key.read_bytes(), identity.certificate.read_bytes())])
    with serving(Scripted(), credentials) as address:
        assert len(generate(address, tls=api.Tls(root_certificates=root))) == 3
        for tls in (
            api.Tls(root_certificates=stranger.ca.read_bytes()),
            api.Tls(root_certificates=root, server_name="another.test"),
        ):
            with pytest.raises(api.UnavailableError):
                generate(address, tls=tls, retry=ONCE, timeout_s=5)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="address"):
        api.InferenceClient([])
    with pytest.raises(ValueError, match="TLS alone"):
        api.InferenceClient("127.0.0.1:1", token="secret")
    with pytest.raises(ValueError, match="server_name"):
        api.SchedulerClient(["a.test:1", "b.test:1"], tls=api.Tls())


def test_every_reason_of_the_contract_has_a_class():
    for enum in (inference_reasons.ErrorReason, scheduler_reasons.ErrorReason):
        for name in enum.keys():  # noqa: SIM118  # a wrapper of protobuf, not a mapping
            reason = name.removeprefix("ERROR_REASON_")
            if reason != "UNSPECIFIED":
                details = api.errors.Details(reason=reason)
                error = error_from_status(grpc.StatusCode.UNKNOWN, "", details)
                assert type(error) is not api.MetronomeError, reason
                assert type(error).__name__ in api.__all__


def test_a_reason_of_a_later_contract_is_an_error_of_its_code():
    error = error_from_status(grpc.StatusCode.UNAVAILABLE, "why", api.errors.Details(reason="BRAND_NEW"))
    assert (type(error), error.reason) == (api.UnavailableError, "BRAND_NEW")


def test_all_details_are_read_and_rubbish_is_not():
    status = status_pb2.Status(code=3)
    violation = error_details_pb2.BadRequest.FieldViolation(field="a.b[3]", description="no")
    quota = error_details_pb2.QuotaFailure.Violation(subject="tenant:x", description="full")
    for detail in (
        error_details_pb2.ErrorInfo(reason="OUT_OF_RANGE", domain="d", metadata={"value": "1"}),
        error_details_pb2.BadRequest(field_violations=[violation]),
        error_details_pb2.QuotaFailure(violations=[quota]),
        error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000)),
        error_details_pb2.DebugInfo(detail="of a later time"),
    ):
        packed = Any()
        packed.Pack(detail)
        status.details.append(packed)
    details = api.details.read_details(status.SerializeToString())
    assert (details.reason, details.domain, details.metadata) == ("OUT_OF_RANGE", "d", {"value": "1"})
    assert [violation.subject for violation in details.field_violations] == ["a.b[3]"]
    assert [violation.subject for violation in details.quota_violations] == ["tenant:x"]
    assert details.retry_delay_s == 2.5
    assert api.details.read_details(b"\xff\xff") == api.details.Details()


def test_pauses_are_within_the_deadline_and_at_least_what_was_asked_for():
    error = api.QueueFullError(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", "", {}, retry_delay_s=1.0)
    pauses = [Attempts(FAST, 10, several_addresses=False).pause_s(error) for _ in range(50)]
    assert all(1.0 <= pause <= 1.01 for pause in pauses)
    assert len(set(pauses)) > 1
    with pytest.raises(api.QueueFullError):
        Attempts(FAST, 0.5, several_addresses=False).pause_s(error)


def test_a_silent_stream_is_kept_alive_at_the_interval_that_the_services_allow():
    """Case 45; the services allow pings every 10 s."""
    options = dict(CHANNEL_OPTIONS)
    assert options["grpc.keepalive_time_ms"] == 10_000
    assert options["grpc.http2.max_pings_without_data"] == 0


# States and plans


@pytest.mark.parametrize("of", [list, tuple, np.array])
def test_a_table_is_written_from_lists_or_arrays(of):
    table = api.request_table(id=of([1, 2]), num_prompt_tokens=of([16, 32]), status=["RUNNING", "WAITING"])
    assert list(table.id) == [1, 2]
    assert list(table.num_prompt_tokens) == [16, 32]
    assert list(table.status) == [state_pb2.REQUEST_STATUS_RUNNING, state_pb2.REQUEST_STATUS_WAITING]


def test_a_column_that_is_none_and_a_value_that_does_not_fit_are_refused():
    with pytest.raises(TypeError, match="no column 'ids'"):
        api.request_table(ids=[1])
    with pytest.raises(ValueError, match="RUNING"):
        api.request_table(id=[1], status=["RUNING"])
    with pytest.raises(ValueError, match="range"):
        api.request_table(num_prompt_tokens=[2**40])


def test_a_plan_is_read_as_plain_values():
    plan = plan_pb2.ExecutorPlan(
        executor_id="e",
        iteration=3,
        scheduled=plan_pb2.ScheduledTable(id=[1], num_tokens=[5], reason=[plan_pb2.REASON_PREFILL]),
        evict=plan_pb2.EvictTable(id=[2], mode=[plan_pb2.EVICT_MODE_SWAP], reason=[999]),
        reject=plan_pb2.RejectTable(id=[3], reason=[plan_pb2.REASON_REJECTED_QUEUE_FULL]),
    )
    decision = api.decision(plan)
    assert (decision.scheduled, decision.evict, decision.reject) == ({1: 5}, {2: "SWAP"}, {3: "REJECTED_QUEUE_FULL"})
    assert decision.reasons == {1: "PREFILL", 2: "999", 3: "REJECTED_QUEUE_FULL"}


class Planner(scheduler_pb2_grpc.SchedulerServiceServicer):
    def Plan(self, request, context):
        return scheduler_pb2.PlanResponse(plans=[plan_pb2.ExecutorPlan(executor_id="e")])

    def ListProfiles(self, request, context):
        return scheduler_pb2.ListProfilesResponse(profiles=[scheduler_pb2.Profile(name="fifo")])


def test_the_scheduler_client_for_asyncio_asks_the_same():
    async def ask(address: str) -> None:
        async with api.AsyncSchedulerClient([address, "127.0.0.1:1"], retry=FAST) as client:
            answer = await client.plan(scheduler_pb2.PlanRequest())
            assert answer.plans[0].executor_id == "e"
            assert [profile.name for profile in await client.list_profiles()] == ["fifo"]
            with pytest.raises(api.UnimplementedError):
                await client.verify(scheduler_pb2.VerifyRequest())

    server = grpc.server(ThreadPoolExecutor(4))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(Planner(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    asyncio.run(ask(f"127.0.0.1:{port}"))
    server.stop(None).wait()


def test_a_client_that_is_closed_ends_its_streams():
    with serving_fake(FakeExecutor()) as address:
        client = api.InferenceClient(address)
        events = client.generate("hang")
        next(events)
        client.close()
        with pytest.raises(api.CancelledError):
            list(events)
