"""From listening to serving to draining: what health says, and what calls get, at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from metronome.executor.v1 import executor_pb2
from metronome.inference.v1 import inference_pb2 as pb
from support.services import (
    Service,
    executor_command,
    health_of,
    is_healthy,
    patched_executor,
    running_executor,
    slow_executor,
    started,
    wait_until,
    wait_until_healthy,
)
from support.wire import TIMEOUT_SECONDS, Client, connected, details_of, greedy

NAMES = ("", "metronome.inference.v1.InferenceService", "metronome.executor.v1.ExecutorService")
CALLS: dict[str, Callable[[Client], object]] = {
    "Generate": lambda client: client.generate(greedy("too early", 1)),
    "Cancel": lambda client: client.inference.Cancel(pb.CancelRequest(request_id="x"), timeout=TIMEOUT_SECONDS),
    "Tokenize": lambda client: client.inference.Tokenize(pb.TokenizeRequest(text="x"), timeout=TIMEOUT_SECONDS),
    "Detokenize": lambda client: client.inference.Detokenize(pb.DetokenizeRequest(), timeout=TIMEOUT_SECONDS),
    "GetModelInfo": lambda client: client.inference.GetModelInfo(pb.GetModelInfoRequest(), timeout=TIMEOUT_SECONDS),
    "GetState": lambda client: client.books(),
    "WatchState": lambda client: list(
        client.control.WatchState(executor_pb2.WatchStateRequest(), timeout=TIMEOUT_SECONDS)
    ),
}


def drain(client: Client, timeout: float = TIMEOUT_SECONDS) -> grpc.Future:
    return client.control.Drain.future(executor_pb2.DrainRequest(), timeout=timeout)


def test_nothing_is_served_until_the_model_is_loaded(
    services_directory: Path, tiny_model_directory: Path, tmp_path: Path, scheduler: Service
) -> None:
    """Case 48."""
    gate = tmp_path / "gate"
    command = executor_command(tiny_model_directory, scheduler=[scheduler.address], program=slow_executor(gate))
    with started(services_directory, command) as service, connected(service.address) as client:
        assert [health_of(service.address, name) for name in NAMES] == [HealthCheckResponse.NOT_SERVING] * 3
        watch = HealthStub(client.channel).Watch(HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        assert next(watch).status == HealthCheckResponse.NOT_SERVING
        for call in CALLS.values():
            with pytest.raises(grpc.RpcError) as caught:
                call(client)
            refusal = details_of(caught.value)
            assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING")
            assert refusal.retry is not None
        gate.touch()
        wait_until_healthy(service)
        assert [health_of(service.address, name) for name in NAMES] == [HealthCheckResponse.SERVING] * 3
        assert next(watch).status == HealthCheckResponse.SERVING
        assert len(client.generate(greedy("in time", 3)).tokens) == 3
        drain(client).result()
        assert next(watch).status == HealthCheckResponse.NOT_SERVING
        watch.cancel()


def test_a_drain_while_the_model_loads_holds_afterwards(
    services_directory: Path, tiny_model_directory: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    command = executor_command(tiny_model_directory, program=slow_executor(gate))
    with started(services_directory, command) as service, connected(service.address) as client:
        drain(client).result()
        gate.touch()
        wait_until(lambda: client.refused(greedy("never", 1)).info.reason == "DRAINING")
        wait_until(lambda: client.executor().draining)
        assert not is_healthy(service.address)


def test_a_drain_lets_those_inside_finish_and_nobody_in(
    services_directory: Path, tiny_model_directory: Path, scheduler: Service
) -> None:
    with (
        running_executor(services_directory, tiny_model_directory, scheduler=[scheduler.address]) as service,
        connected(service.address) as client,
    ):
        inside = [client.open(greedy(f"inside {number}", 300)) for number in range(3)]
        draining = drain(client)
        wait_until(lambda: not is_healthy(service.address))
        assert [health_of(service.address, name) for name in NAMES] == [HealthCheckResponse.NOT_SERVING] * 3
        refusal = client.refused(greedy("too late", 1))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert refusal.retry is not None
        assert drain(client, timeout=0.01).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: client.executor().draining)
        assert [sum(len(response.delta.token_ids) for response in stream) for stream in inside] == [300] * 3
        draining.result()
        assert client.is_idle()
        drain(client).result()
        assert client.refused(greedy("much too late", 1)).info.reason == "DRAINING"


def test_an_engine_that_stands_still_is_not_serving_until_it_gets_on(
    services_directory: Path, tiny_model_directory: Path, tmp_path: Path, scheduler: Service
) -> None:
    """The device hangs in a pass; who waits for its answer gets it when the pass is through."""
    hangs = tmp_path / "hangs"
    patch = (
        "import pathlib, time\n"
        "from executor_service.engine import loop\n"
        "execute = loop.Engine._execute\n"
        "def hanging(engine, inputs):\n"
        f"    while pathlib.Path({str(hangs)!r}).exists():\n"
        "        time.sleep(0.01)\n"
        "    return execute(engine, inputs)\n"
        "loop.Engine._execute = hanging"
    )
    flags = ("--stall-s", "0.2")
    command = executor_command(
        tiny_model_directory, *flags, scheduler=[scheduler.address], program=patched_executor(patch)
    )
    with started(services_directory, command) as service, connected(service.address) as client:
        wait_until_healthy(service)
        hangs.touch()
        stream = client.open(greedy("hangs for a while", 5))
        wait_until(lambda: "engine_stands_still" in service.log)
        wait_until(
            lambda: [health_of(service.address, name) for name in NAMES] == [HealthCheckResponse.NOT_SERVING] * 3
        )
        hangs.unlink()
        assert sum(len(response.delta.token_ids) for response in stream) == 5
        wait_until_healthy(service)
        assert "engine_gets_on" in service.log


def test_weights_may_be_in_8_bits(services_directory: Path, tiny_model_directory: Path, scheduler: Service) -> None:
    command = (services_directory, tiny_model_directory, "--quantization", "int8")
    with (
        running_executor(*command, scheduler=[scheduler.address]) as service,
        connected(service.address) as client,
    ):
        assert len(client.generate(greedy("some text", 20)).tokens) == 20
        assert "quantizing" in service.log
