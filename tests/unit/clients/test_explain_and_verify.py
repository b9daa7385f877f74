"""`metronome explain` and `metronome verify` against a scripted scheduler: the words, the figures, the exit status."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2
from metronome_cli.main import run_command
from support.fake_services import FakeScheduler, serving

EXAMPLE_STATE = Path(__file__).parents[3] / "docs" / "examples" / "state.json"

EXPLAINED = plan_pb2.ExecutorPlan(
    executor_id="example",
    iteration=412,
    scheduled=plan_pb2.ScheduledTable(id=[1, 4], num_tokens=[1, 1], reason=[plan_pb2.REASON_DECODE] * 2),
    resume=plan_pb2.TransitionTable(id=[4], reason=[plan_pb2.REASON_RESUMED]),
    evict=plan_pb2.EvictTable(id=[3], mode=[plan_pb2.EVICT_MODE_SWAP], reason=[plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS]),
    reject=plan_pb2.RejectTable(
        id=[6], reason=[plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS], needed=[98], available=[88], estimated_wait_us=[0]
    ),
    explanations=plan_pb2.ExplanationTable(
        id=[1, 3, 4, 5, 6, 7],
        reason=[
            plan_pb2.REASON_DECODE,
            plan_pb2.REASON_EVICTED_OUT_OF_BLOCKS,
            plan_pb2.REASON_DECODE,
            plan_pb2.REASON_WAITING_FOR_BLOCKS,
            plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS,
            plan_pb2.REASON_WAITING_BEHIND,
        ],
        needed=[0, 0, 0, 14, 98, 0],
        available=[0, 0, 0, 9, 88, 0],
        behind_id=[0, 0, 0, 0, 0, 5],
    ),
)


class Verifying(FakeScheduler):
    """Finds what it was told to find."""

    def __init__(self, *violations: scheduler_pb2.Violation) -> None:
        super().__init__(scheduler_pb2.PlanResponse())
        self.violations = violations
        self.asked: list[scheduler_pb2.VerifyRequest] = []

    def Verify(
        self, request: scheduler_pb2.VerifyRequest, context: grpc.ServicerContext
    ) -> scheduler_pb2.VerifyResponse:
        self.asked.append(request)
        return scheduler_pb2.VerifyResponse(violations=self.violations)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text('{"plans": [{"executorId": "example", "iteration": "412"}]}')
    return path


def verify(scheduler: Verifying, *arguments: object) -> int:
    with serving(scheduler) as address:
        return run_command(["verify", *map(str, arguments), "--scheduler", address])


def test_every_request_is_explained_with_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = FakeScheduler(scheduler_pb2.PlanResponse(plans=[EXPLAINED]))
    with serving(scheduler) as address:
        assert run_command(["explain", str(EXAMPLE_STATE), "--scheduler", address]) == 0
    (request,) = scheduler.requests
    assert request.explain
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert shown[:9] == [
        "Explanation for example, iteration 412",
        "request is gets why",
        "1 running, 10.00 s old 1 token its next token",
        "2 running, 9.00 s old nothing",
        "3 running, 8.00 s old evict to swap space blocks ran out",
        "4 swapped out, last ran in 398 resume, 1 token fits again; its next token",
        "5 waiting for 6.00 s nothing waits for blocks: needs 14 blocks, 9 free",
        "6 waiting for 5.00 s reject can never fit the cache: needs 98 blocks, at most 88",
        "7 waiting for 4.00 s nothing waits behind another: request 5 is ahead (waits for blocks)",
    ]


def test_a_plan_that_keeps_everything_is_said_to(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = Verifying()
    assert verify(scheduler, EXAMPLE_STATE, plan_file, "--profile", "other") == 0
    assert capsys.readouterr().out == "keeps all invariants\n"
    (asked,) = scheduler.asked
    assert asked.profile == "other"
    assert asked.state.executors[0].executor_id == asked.plans[0].executor_id == "example"


def test_what_is_broken_is_listed_and_ends_with_status_1(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = scheduler_pb2.Violation(
        executor_id="example", invariant=scheduler_pb2.INVARIANT_TOKENS, ids=[2, 3], description="2 runs too much"
    )
    assert verify(Verifying(tokens), EXAMPLE_STATE, plan_file) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("example"))
    assert line.split() == ["example", "3", "tokens", "2,", "3", "2", "runs", "too", "much"]


def test_one_plan_alone_is_a_plan_too(tmp_path: Path) -> None:
    scheduler = Verifying()
    (tmp_path / "plan.json").write_text('{"executorId": "example", "iteration": "412"}')
    assert verify(scheduler, EXAMPLE_STATE, tmp_path / "plan.json") == 0
    assert [plan.iteration for plan in scheduler.asked[0].plans] == [412]


def test_the_policy_of_a_whole_request_is_the_one_to_verify_by(tmp_path: Path, plan_file: Path) -> None:
    scheduler = Verifying()
    (tmp_path / "request.json").write_text('{"state": {"nowUs": "1"}, "policy": {"chunkSizeTokens": 7}}')
    assert verify(scheduler, tmp_path / "request.json", plan_file) == 0
    assert scheduler.asked[0].policy.chunk_size_tokens == 7


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("[]", "plan.json holds no JSON object; give a PlanResponse or an ExecutorPlan"),
        ('{"plans": [{"iteration": "soon"}]}', "plans.iteration: 'soon' is no number"),
    ],
)
def test_a_broken_plan_is_one_line_with_the_place(
    content: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(content)
    assert run_command(["verify", str(EXAMPLE_STATE), str(tmp_path / "plan.json")]) == 1
    error = capsys.readouterr().err
    assert place in error
    assert error.count("\n") == 1
