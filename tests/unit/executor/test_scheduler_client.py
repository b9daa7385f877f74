"""The planner over gRPC, against small schedulers made here: whom it asks, in which order, and for how long."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest

from executor_service import scheduler_client
from executor_service.engine.books import SCHEDULER_COLUMNS
from executor_service.engine.limits import Limits
from executor_service.engine.planner import FailureCause, PlanUnavailableError
from executor_service.engine.snapshot import Snapshot
from executor_service.scheduler_client import MAX_BACKOFF_S, MIN_BACKOFF_S, SchedulerClient
from executor_service.scheduler_tls import SchedulerTls
from metronome.scheduler.v1 import plan_pb2, policy_pb2, scheduler_pb2, scheduler_pb2_grpc
from service_shell.pem import TlsError
from support.certificates import Authority, Identity

EXECUTOR_ID = "executor-0"
SNAPSHOT = Snapshot(
    iteration=7,
    now_us=1,
    limits=Limits(
        max_num_batched_tokens=64,
        max_num_seqs=4,
        block_size=16,
        num_blocks=8,
        num_swap_blocks=0,
        max_model_len=128,
        max_num_waiting=None,
    ),
    num_free_blocks=8,
    num_free_swap_blocks=0,
    latency=None,
    tenants=(),
    tenant_service=np.zeros(0),
    columns={name: np.zeros(0, dtype=dtype) for name, dtype in SCHEDULER_COLUMNS.items()},
)

Behaviour = Callable[["Scheduler", grpc.ServicerContext], scheduler_pb2.PlanResponse]


class Scheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Does with every call what `behaviour` says."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.requests: list[scheduler_pb2.PlanRequest] = []
        self.is_left = threading.Event()  # the caller has given up on a call
        self.is_over = threading.Event()  # the test has ended

    def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
        self.requests.append(request)
        return self.behaviour(self, context)


def answer(_: Scheduler, __: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    return plans_for(EXECUTOR_ID)


def answer_for_another(_: Scheduler, __: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    return plans_for("executor-1")


def answer_for_both(_: Scheduler, __: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    return plans_for(EXECUTOR_ID, "executor-1")


def answer_nothing(_: Scheduler, __: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    return plans_for()


def be_unavailable(_: Scheduler, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
    raise AssertionError("abort raises")


def refuse(_: Scheduler, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "state.now_us is required")
    raise AssertionError("abort raises")


def crash(_: Scheduler, __: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    raise ZeroDivisionError


def hang(scheduler: Scheduler, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
    context.add_callback(scheduler.is_left.set)
    scheduler.is_over.wait(60)
    return plans_for(EXECUTOR_ID)


def plans_for(*executor_ids: str) -> scheduler_pb2.PlanResponse:
    plans = [plan_pb2.ExecutorPlan(executor_id=executor_id, iteration=7) for executor_id in executor_ids]
    return scheduler_pb2.PlanResponse(plans=plans)


class Clock:
    """Time as the client sees it, which passes only when told to; gRPC's own goes on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A still clock, and back-off without its jitter: always the longest."""
    clock = Clock()
    monkeypatch.setattr(scheduler_client, "time", clock)
    monkeypatch.setattr(scheduler_client, "random", SimpleNamespace(uniform=lambda low, high: high))
    return clock


@contextmanager
def serving(scheduler: Scheduler, address: str = "127.0.0.1:0", shown: Identity | None = None) -> Iterator[str]:
    pool = ThreadPoolExecutor(4)
    server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(scheduler, server)
    if shown is None:
        port = server.add_insecure_port(address)
    else:
        pair = (shown.key.read_bytes(), shown.certificate.read_bytes())
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        scheduler.is_over.set()
        server.stop(None).wait()
        pool.shutdown()


@contextmanager
def client_of(
    *behaviours: Behaviour, timeout_s: float = 20, **settings: object
) -> Iterator[tuple[SchedulerClient, list[Scheduler]]]:
    """A client of as many schedulers, in that order."""
    schedulers = [Scheduler(behaviour) for behaviour in behaviours]
    with ExitStack() as stack:
        addresses = [stack.enter_context(serving(scheduler)) for scheduler in schedulers]
        client = SchedulerClient(addresses, executor_id=EXECUTOR_ID, timeout_s=timeout_s, **settings)  # type: ignore[arg-type]
        stack.callback(client.close)
        yield client, schedulers


def num_calls(schedulers: list[Scheduler]) -> list[int]:
    return [len(scheduler.requests) for scheduler in schedulers]


def failure_of(client: SchedulerClient) -> str:
    """What is said when no plan comes."""
    with pytest.raises(PlanUnavailableError) as caught:
        client.request(SNAPSHOT).result()
    return str(caught.value)


def test_a_plan_comes_from_the_first_address() -> None:
    with client_of(answer, answer) as (client, schedulers):
        plans = [client.request(SNAPSHOT).result() for _ in range(3)]
        assert [plan.iteration for plan in plans] == [7] * 3
        assert num_calls(schedulers) == [3, 0]
        request = schedulers[0].requests[0]
        assert request.state.executors[0].executor_id == EXECUTOR_ID
        assert request.state.executors[0].limits.num_blocks == 8
        assert request.WhichOneof("policy_choice") is None


def test_a_profile_goes_by_its_name_and_a_policy_whole() -> None:
    with client_of(answer, policy="fifo") as (client, schedulers):
        client.request(SNAPSHOT).result()
        assert schedulers[0].requests[0].profile == "fifo"
    policy = policy_pb2.Policy(chunk_size_tokens=64)
    with client_of(answer, policy=policy) as (client, schedulers):
        client.request(SNAPSHOT).result()
        assert schedulers[0].requests[0].policy == policy


@pytest.mark.parametrize("fail", [be_unavailable, refuse, crash, answer_for_another, answer_for_both, answer_nothing])
def test_a_scheduler_that_fails_is_followed_by_the_next_for_the_same_plan(clock: Clock, fail: Behaviour) -> None:
    with client_of(fail, answer) as (client, schedulers):
        assert client.request(SNAPSHOT).result().iteration == 7
        assert num_calls(schedulers) == [1, 1]


def test_the_address_that_answered_is_asked_first_from_then_on(clock: Clock) -> None:
    with client_of(be_unavailable, answer) as (client, schedulers):
        client.request(SNAPSHOT).result()
        schedulers[0].behaviour = answer
        clock.now += MAX_BACKOFF_S
        client.request(SNAPSHOT).result()
        assert num_calls(schedulers) == [1, 2]
        schedulers[1].behaviour = be_unavailable
        client.request(SNAPSHOT).result()
        assert num_calls(schedulers) == [2, 3]


def test_all_failures_are_told(clock: Clock) -> None:
    with client_of(refuse, answer_for_another) as (client, _):
        told = failure_of(client)
    assert "INVALID_ARGUMENT: state.now_us is required" in told
    assert "executor-1" in told
    assert told.count("127.0.0.1:") == 2


@pytest.mark.parametrize(
    ("behaviours", "cause"),
    [
        ([be_unavailable], FailureCause.NO_ANSWER),
        ([refuse], FailureCause.REFUSAL),
        ([crash], FailureCause.REFUSAL),
        ([answer_nothing], FailureCause.REFUSAL),
        ([be_unavailable, refuse], FailureCause.REFUSAL),
    ],
)
def test_a_refusal_is_told_from_silence(clock: Clock, behaviours: list[Behaviour], cause: FailureCause) -> None:
    with client_of(*behaviours) as (client, schedulers):
        for _ in range(2):  # the second time, all are in back-off
            with pytest.raises(PlanUnavailableError) as caught:
                client.request(SNAPSHOT).result()
            assert caught.value.cause is cause
            assert str(caught.value).startswith(cause.value)
        assert num_calls(schedulers) == [1] * len(behaviours)


def test_an_address_where_nobody_listens_is_told_in_few_words() -> None:
    client = SchedulerClient(["127.0.0.1:1"], executor_id=EXECUTOR_ID, timeout_s=20)
    told = failure_of(client)
    client.close()
    assert re.fullmatch(r"no scheduler answers: 127\.0\.0\.1:1: UNAVAILABLE: Connection refused( \(\d+\))?", told)


def test_an_address_that_failed_is_left_alone_for_longer_and_longer(clock: Clock) -> None:
    waits = [min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2**failures) for failures in range(10)]
    with client_of(be_unavailable) as (client, schedulers):
        for failures, wait in enumerate(waits, start=1):
            assert "going away" in failure_of(client)
            clock.now += wait * 0.99
            assert "going away" in failure_of(client)  # nobody is asked: it is how the last call failed
            assert num_calls(schedulers) == [failures]
            clock.now += wait * 0.02
    assert waits[-1] == MAX_BACKOFF_S


def test_an_answer_ends_the_back_off(clock: Clock) -> None:
    with client_of(be_unavailable) as (client, schedulers):
        for _ in range(6):
            failure_of(client)
            clock.now += MAX_BACKOFF_S
        schedulers[0].behaviour = answer
        client.request(SNAPSHOT).result()
        schedulers[0].behaviour = be_unavailable
        failure_of(client)
        clock.now += MIN_BACKOFF_S
        assert "going away" in failure_of(client)


def test_the_wait_of_a_back_off_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return low

    monkeypatch.setattr(scheduler_client, "random", SimpleNamespace(uniform=draw))
    with client_of(be_unavailable) as (client, _):
        for _ in range(3):
            failure_of(client)
    assert drawn == [(0, MIN_BACKOFF_S), (0, 2 * MIN_BACKOFF_S), (0, 4 * MIN_BACKOFF_S)]


def test_a_scheduler_that_hangs_leaves_time_for_the_others() -> None:
    with client_of(hang, hang, answer, timeout_s=1.5) as (client, schedulers):
        assert client.request(SNAPSHOT).result().iteration == 7
        assert num_calls(schedulers) == [1, 1, 1]


def test_schedulers_that_all_hang_cost_the_time_limit_once() -> None:
    with client_of(hang, hang, hang, timeout_s=3) as (client, schedulers):
        started = time.monotonic()
        told = failure_of(client)
        assert time.monotonic() - started < 30
        assert told.count("DEADLINE_EXCEEDED") == 3
        assert num_calls(schedulers) == [1, 1, 1]


def test_a_dead_address_is_followed_by_the_next_and_found_again_when_it_lives(clock: Clock) -> None:
    with serving(Scheduler(answer)) as dead:
        pass
    revived, other = Scheduler(answer), Scheduler(answer)
    with serving(other) as alive:
        client = SchedulerClient([dead, alive], executor_id=EXECUTOR_ID, timeout_s=20)
        client.request(SNAPSHOT).result()
        other.behaviour = be_unavailable
        with serving(revived, dead):
            deadline = time.monotonic() + 60  # gRPC connects anew in its own time
            while not revived.requests:
                assert time.monotonic() < deadline, "the revived scheduler is never asked"
                clock.now += MAX_BACKOFF_S
                try:
                    client.request(SNAPSHOT).result()
                except PlanUnavailableError:
                    time.sleep(0.05)
        client.close()


def test_a_plan_that_nobody_waits_for_is_given_up() -> None:
    with client_of(hang) as (client, (scheduler,)):
        pending = client.request(SNAPSHOT)
        deadline = time.monotonic() + 60
        while not scheduler.requests:
            assert time.monotonic() < deadline, "the scheduler is never asked"
            time.sleep(0.01)
        pending.cancel()
        assert scheduler.is_left.wait(60)


def test_the_round_trip_is_known_with_the_plan() -> None:
    with client_of(answer) as (client, _):
        for _ in range(200):
            pending = client.request(SNAPSHOT)
            pending.result()
            assert pending.round_trip_us > 0


def test_the_round_trip_ends_when_the_plan_arrives_and_not_when_it_is_fetched(clock: Clock) -> None:
    arrived = threading.Event()
    with client_of(answer) as (client, _):
        pending = client.request(SNAPSHOT)
        assert pending._call is not None
        pending._call.add_done_callback(lambda _: arrived.set())
        assert arrived.wait(20)
        clock.now += 60
        pending.result()
        assert pending.round_trip_us == 0


# TLS


def test_only_a_scheduler_that_the_authority_vouches_for_is_asked(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    asked, stranger = Scheduler(answer), Scheduler(answer)
    with serving(stranger, shown=theirs.sign("a")) as first, serving(asked, shown=ours.sign("b")) as second:
        client = SchedulerClient([first, second], executor_id=EXECUTOR_ID, timeout_s=20, tls=SchedulerTls(ca=ours.ca))
        assert client.request(SNAPSHOT).result().iteration == 7
        client.close()
    assert num_calls([stranger, asked]) == [0, 1]


def test_an_authority_that_is_renewed_counts_once_the_former_one_failed(clock: Clock, tmp_path: Path) -> None:
    former, renewed = Authority(tmp_path / "former"), Authority(tmp_path / "renewed")
    with serving(Scheduler(answer), shown=renewed.sign("scheduler")) as address:
        client = SchedulerClient([address], executor_id=EXECUTOR_ID, timeout_s=20, tls=SchedulerTls(ca=former.ca))
        failure_of(client)
        for content in (b"none", renewed.ca.read_bytes()):
            former.ca.write_bytes(content)
            clock.now += MAX_BACKOFF_S
            failure_of(client)
        clock.now += MAX_BACKOFF_S
        assert client.request(SNAPSHOT).result().iteration == 7
        client.close()


def test_files_that_cannot_be_used_are_said_at_the_start(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    mine, other = ours.sign("mine"), theirs.sign("other")
    for tls, told in (
        (SchedulerTls(ca=tmp_path / "gone"), "cannot read --scheduler-ca"),
        (SchedulerTls(ca=mine.key), "holds no certificate"),
        (SchedulerTls(ca=ours.ca, certificate=mine.certificate, key=other.key), "do not belong together"),
        (SchedulerTls(ca=ours.ca, certificate=mine.certificate, key=tmp_path / "gone"), "cannot read"),
    ):
        with pytest.raises(TlsError, match=told):
            SchedulerClient(["127.0.0.1:1"], executor_id=EXECUTOR_ID, timeout_s=1, tls=tls)
