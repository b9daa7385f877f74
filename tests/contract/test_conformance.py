"""The conformance kit against our own services, which hold, and against broken ones, which it must catch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import grpc
import pytest

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, scheduler_pb2_grpc, state_pb2
from metronome_cli.main import run_command
from metronome_conformance import Result, Verdict, load_scenarios
from metronome_conformance.executor_kit import ExecutorUnderTest, UnreadyError, run_executor_scenarios
from metronome_conformance.planner import ServedPlanner
from metronome_conformance.scheduler_kit import run_scheduler_scenarios
from metronome_conformance.wire import PythonDriver
from support.services import Service, executor_command, started, wait_until_healthy

ROOT = Path(__file__).parents[2]
SIZES = ("--num-blocks", "32", "--num-swap-blocks", "8", "--max-num-seqs", "8", "--max-num-waiting", "4")


def broken(results: Iterator[Result]) -> dict[str, tuple[str, ...]]:
    """Findings by scenario."""
    return {result.scenario.name: result.findings for result in results if result.verdict is Verdict.BROKEN}


# Schedulers


def check_scheduler(address: str, *only: str) -> dict[str, tuple[str, ...]]:
    driver = PythonDriver(address)
    try:
        return broken(run_scheduler_scenarios(driver, load_scenarios("scheduler", only=only)))
    finally:
        driver.close()


def test_our_scheduler_keeps_every_promise(
    scheduler: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.xml"
    assert run_command(["conformance", "scheduler", scheduler.address, "--junit", str(report)]) == 0
    scenarios = load_scenarios("scheduler")
    table = capsys.readouterr().out
    assert all(scenario.name in table and scenario.promise in table for scenario in scenarios)
    suite = ElementTree.parse(report).getroot()
    assert (suite.get("tests"), suite.get("failures")) == (str(len(scenarios)), "0")


class CrookedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Asks an honest scheduler, and changes what it said."""

    def __init__(self, address: str, bend: Callable[[state_pb2.ExecutorState, plan_pb2.ExecutorPlan], None]) -> None:
        self._stub = scheduler_pb2_grpc.SchedulerServiceStub(grpc.insecure_channel(address))
        self._bend = bend

    def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> scheduler_pb2.PlanResponse:
        answer: scheduler_pb2.PlanResponse = self._stub.Plan(request, timeout=10)
        for executor, plan in zip(request.state.executors, answer.plans, strict=True):
            self._bend(executor, plan)
        return answer


def oversubscribes_blocks(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> None:
    """Lets in who waits, for as many blocks as it takes."""
    places = state.limits.max_num_seqs - len(plan.scheduled.id)
    for id, status, prompt in zip(
        state.requests.id, state.requests.status, state.requests.num_prompt_tokens, strict=True
    ):
        known = {*plan.scheduled.id, *plan.reject.id}
        budget = state.limits.max_num_batched_tokens - sum(plan.scheduled.num_tokens)
        if status == state_pb2.REQUEST_STATUS_WAITING and id not in known and places > 0 and budget >= prompt:
            plan.admit.id.append(id)
            plan.admit.reason.append(plan_pb2.REASON_ADMITTED)
            plan.scheduled.id.append(id)
            plan.scheduled.num_tokens.append(prompt)
            plan.scheduled.reason.append(plan_pb2.REASON_PREFILL)
            places -= 1
    plan.ClearField("composition")


def answers_for_the_wrong_iteration(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> None:
    plan.iteration += 1


def never_evicts_and_stands_still(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> None:
    if plan.evict.id:
        plan.ClearField("evict")
        plan.ClearField("scheduled")
        plan.ClearField("composition")


def hides_who_can_never_fit(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> None:
    plan.ClearField("reject")


def forgets_the_order(state: state_pb2.ExecutorState, plan: plan_pb2.ExecutorPlan) -> None:
    """Its answer depends on the order of the rows."""
    plan.digest = hash(tuple(state.requests.id)) % 2**31


@contextmanager
def serving(servicer: scheduler_pb2_grpc.SchedulerServiceServicer) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("bend", "scenario", "finding"),
    [
        (oversubscribes_blocks, "blocks_run_out", "2: the pass needs"),
        (answers_for_the_wrong_iteration, "plan_of_a_small_state", "8: the plan is for iteration 8"),
        (never_evicts_and_stands_still, "blocks_run_out", "5: "),
        (hides_who_can_never_fit, "never_fits", "can never fit"),
        (forgets_the_order, "same_state_same_plan", "8: the plans are not those of first"),
    ],
)
def test_a_crooked_scheduler_is_caught(scheduler: Service, bend, scenario: str, finding: str) -> None:
    with serving(CrookedScheduler(scheduler.address, bend)) as address:
        findings = check_scheduler(address, scenario)
        assert finding in findings[scenario][0]
        assert run_command(["conformance", "scheduler", address, "--only", scenario]) == 1


def test_a_method_that_is_not_there_is_caught_and_nothing_hangs(scheduler: Service) -> None:
    with serving(CrookedScheduler(scheduler.address, lambda state, plan: None)) as address:
        findings = check_scheduler(address, "profiles_are_listed", "verify_finds_what_is_broken", "malformed_message")
    assert set(findings) == {"profiles_are_listed", "verify_finds_what_is_broken", "malformed_message"}
    assert "UNIMPLEMENTED" in findings["profiles_are_listed"][0]


def test_nobody_there_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["conformance", "scheduler", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.strip() == "error: no scheduler answers at 127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "no-such-scenario"], "no scenario is named no-such-scenario"),
        (["--driver", "/no/such/program"], "cannot start the driver"),
        (["--driver", f"{sys.executable} -c pass", "--only", "duplicate_id"], "the driver has ended"),
        (["--only", "duplicate_id", "--junit", "/no/such/directory/report.xml"], "cannot write"),
    ],
)
def test_what_the_kit_cannot_do_is_said_in_a_line(
    scheduler: Service, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run_command(["conformance", "scheduler", scheduler.address, *arguments]) == 1
    line = capsys.readouterr().err.rpartition("\r")[2]
    assert line.startswith("error: ")
    assert said in line


def test_an_address_that_is_taken_is_said_in_a_line(
    scheduler: Service, executor: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["conformance", "executor", executor.address, "--scheduler-listen", scheduler.address]
    assert run_command(arguments) == 1
    assert "cannot listen on" in capsys.readouterr().err


# Executors


@contextmanager
def executor_of(directory: Path, model: Path) -> Iterator[tuple[Service, ServedPlanner, ExecutorUnderTest]]:
    """An executor process that asks the kit for plans."""
    served = ServedPlanner("127.0.0.1:0")
    command = executor_command(model, *SIZES, scheduler=[served.address])
    try:
        with started(directory, command) as service:
            wait_until_healthy(service)
            under_test = ExecutorUnderTest(service.address)
            under_test.wait_until_ready(served.planner)
            yield service, served, under_test
            under_test.close()
    finally:
        served.close()


def check_executor(
    service: Service, served: ServedPlanner, under_test: ExecutorUnderTest, *only: str
) -> dict[str, tuple[str, ...]]:
    driver = PythonDriver(service.address)
    try:
        scenarios = load_scenarios("executor", only=only)
        results = list(run_executor_scenarios(driver, under_test, served.planner, scenarios))
        assert not [result.scenario.name for result in results if result.verdict is Verdict.SKIPPED]
        return broken(iter(results))
    finally:
        driver.close()


def test_our_executor_keeps_every_promise(services_directory: Path, tiny_model_directory: Path) -> None:
    with executor_of(services_directory, tiny_model_directory) as parts:
        assert check_executor(*parts) == {}


IGNORES_EVICTIONS = """
import asyncio, sys
sys.path.insert(0, "clients/examples/python")
import executor
carry_out, stream = executor.Books.begin, executor.Request.events
def deaf(self, plan):
    plan.ClearField("evict")
    return carry_out(self, plan)
async def wrong(self):
    async for event in stream(self):
        if event.HasField("started"):
            event.started.sampling.temperature += 1
        yield event
executor.Books.begin, executor.Request.events = deaf, wrong
asyncio.run(executor.main())
"""


def test_an_executor_that_ignores_evictions_and_one_that_misinforms_are_caught() -> None:
    """The example, which is small enough to break."""
    served = ServedPlanner("127.0.0.1:0")
    command = [sys.executable, "-c", IGNORES_EVICTIONS, "--port", "0", "--scheduler", served.address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            under_test, driver = ExecutorUnderTest(address), PythonDriver(address)
            under_test.wait_until_ready(served.planner)
            names = ("evicted_by_recompute", "zero_is_not_unset", "stream_of_an_answer")
            scenarios = load_scenarios("executor", only=names)
            findings = broken(run_executor_scenarios(driver, under_test, served.planner, scenarios))
            driver.close()
            under_test.close()
        finally:
            process.kill()
            served.close()
    assert set(findings) == {"evicted_by_recompute", "zero_is_not_unset"}
    assert "num_preemptions" in findings["evicted_by_recompute"][0]
    assert any("evicts request" in finding for finding in findings["evicted_by_recompute"])
    assert "temperature" in findings["zero_is_not_unset"][0]


def test_an_executor_that_does_not_ask_the_kit_is_told_so(executor: Service) -> None:
    served, under_test = ServedPlanner("127.0.0.1:0"), ExecutorUnderTest(executor.address)
    with pytest.raises(UnreadyError, match="only scheduler"):
        under_test.wait_until_ready(served.planner, wait_s=0.3)
    under_test.close()
    served.close()
