"""What happens to planned calls off the critical path: nothing there delays a call, or fails it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from metronome.scheduler.v1 import scheduler_pb2
from scheduler_service import convert
from scheduler_service.core.executor_plan import Evictions, ExecutorPlan, Rejections, Scheduled, Transitions
from scheduler_service.core.plan import plan
from scheduler_service.core.policy import Policy
from scheduler_service.observers import Missed, ObserverThread, PlannedCall
from scheduler_service.recorder import Recorder
from scheduler_service.shadow import Difference, Shadow, differences
from service_shell import recording_file
from support.recordings import recorded_files, records_in, settings_of
from support.scheduler_process import plan_request

NOTHING_MISSED = Missed(num_dropped=0, num_failed=0)


def planned_call(policy: Policy | None = None) -> PlannedCall:
    policy, request = policy or Policy(), plan_request()
    cluster = convert.cluster_from(request.state, "state")
    plans = plan(cluster, policy)
    response = scheduler_pb2.PlanResponse(plans=map(convert.plan_message, plans))
    return PlannedCall(request=request, response=response, policy=policy, cluster=cluster, plans=plans)


class Spy:
    """Keeps what it sees, does with each call what it is told to, and waits for the gate before it looks at any."""

    name = "spy"

    def __init__(self, do: Callable[[], None] = lambda: None) -> None:
        self.gate = threading.Event()
        self.looks = threading.Event()
        self.seen: list[PlannedCall] = []
        self.missed: list[Missed] = []
        self.is_closed = False
        self._do = do

    def observe(self, call: PlannedCall) -> None:
        self.looks.set()
        assert self.gate.wait(30)
        self.seen.append(call)
        self._do()

    def report(self, missed: Missed) -> None:
        self.missed.append(missed)

    def close(self) -> None:
        self.is_closed = True


def fail() -> None:
    raise ZeroDivisionError("a fault of ours")


def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    spy, call = Spy(), planned_call()
    thread = ObserverThread(spy, report_interval_s=3600, capacity=3)
    thread.start()
    thread.offer(call)
    assert spy.looks.wait(30)  # one is being looked at, and three more have room
    for _ in range(10):
        thread.offer(call)
    spy.gate.set()
    thread.close()
    assert len(spy.seen) == 4
    assert spy.missed == [Missed(num_dropped=7, num_failed=0)]
    assert spy.is_closed


def test_an_observer_that_fails_sees_the_next_call_all_the_same_and_complains_once() -> None:
    spy = Spy(do=fail)
    spy.gate.set()
    thread = ObserverThread(spy, report_interval_s=3600)
    with capture_logs() as logs:
        thread.start()
        for _ in range(3):
            thread.offer(planned_call())
        thread.close()
    assert len(spy.seen) == 3
    assert spy.missed == [Missed(num_dropped=0, num_failed=3)]
    assert [entry["event"] for entry in logs] == ["observer_failed"]


def test_reports_come_at_the_interval_without_calls_too() -> None:
    spy = Spy()
    reported = threading.Event()
    spy.report = lambda missed: reported.set()  # type: ignore[method-assign]
    thread = ObserverThread(spy, report_interval_s=0.01)
    thread.start()
    assert reported.wait(30)
    thread.close()


def test_a_recorder_writes_the_policy_in_full(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path))
    call = planned_call(Policy(chunk_size_tokens=5))
    recorder.observe(call)
    recorder.close()
    (record,) = records_in(recorded_files(tmp_path))
    assert record.response == call.response
    assert record.request.state == call.request.state
    assert convert.policy_from(record.request.policy, "policy") == call.policy
    assert call.request.WhichOneof("policy_choice") is None


def test_a_disk_that_fails_ends_the_recording_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder(settings_of(tmp_path))
    recorder.observe(planned_call())
    with capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(recording_file.RotatingFile, "write", full)
        recorder.observe(planned_call())
    recorder.observe(planned_call())
    recorder.close()
    assert [entry["event"] for entry in logs] == ["recording_stopped"]
    assert len(records_in(recorded_files(tmp_path))) == 1


def test_a_recorder_says_what_it_missed(tmp_path: Path) -> None:
    recorder = Recorder(settings_of(tmp_path))
    with capture_logs() as logs:
        recorder.report(NOTHING_MISSED)
        recorder.report(Missed(num_dropped=2, num_failed=1))
    assert [(entry["num_dropped"], entry["num_failed"]) for entry in logs] == [(2, 1)]


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@pytest.mark.parametrize(
    ("lists", "kind"),
    [
        ({"admit": Transitions(id=column(1), reason=column(10))}, Difference.ADMITTED),
        ({"resume": Transitions(id=column(1), reason=column(13))}, Difference.RESUMED),
        ({"evict": Evictions(id=column(1), mode=column(1), reason=column(20))}, Difference.EVICTED),
        ({"scheduled": Scheduled(id=column(1), num_tokens=column(5), reason=column(1))}, Difference.SCHEDULED_TOKENS),
        ({"reject": Rejections(id=column(1), reason=column(50))}, Difference.REJECTED),
    ],
)
def test_a_difference_has_its_kind(lists: dict[str, object], kind: Difference) -> None:
    empty = ExecutorPlan(executor_id="executor-0", iteration=1)
    other = ExecutorPlan(executor_id="executor-0", iteration=1, **lists)  # type: ignore[arg-type]
    assert list(differences(empty, other)) == list(differences(other, empty)) == [kind]
    assert list(differences(other, other)) == []


def test_the_way_of_an_eviction_and_the_tokens_count_but_their_order_does_not() -> None:
    def evicting(mode: int) -> ExecutorPlan:
        evict = Evictions(id=column(1), mode=column(mode), reason=column(20))
        return ExecutorPlan(executor_id="executor-0", iteration=1, evict=evict)

    def running(*ids: int) -> ExecutorPlan:
        ones = column(*(1 for _ in ids))
        scheduled = Scheduled(id=column(*ids), num_tokens=ones, reason=ones)
        return ExecutorPlan(executor_id="executor-0", iteration=1, scheduled=scheduled)

    assert list(differences(evicting(1), evicting(2))) == [Difference.EVICTED]
    assert list(differences(running(1, 2), running(2, 1))) == []


def test_a_shadow_counts_by_kind_what_it_would_have_decided_otherwise() -> None:
    policy = Policy()
    shadow = Shadow("other", lambda: policy)
    with capture_logs() as logs:
        shadow.report(NOTHING_MISSED)
        shadow.observe(planned_call())
        policy = Policy(chunk_size_tokens=5)  # the profile was changed: it is looked up at each call
        shadow.observe(planned_call())
        shadow.report(NOTHING_MISSED)
        shadow.report(Missed(num_dropped=3, num_failed=0))
    assert [entry["event"] for entry in logs] == ["shadow_difference"] * 2
    assert (logs[0]["profile"], logs[0]["num_plans"], logs[0]["num_different"]) == ("other", 2, 1)
    assert {kind: logs[0][kind] for kind in Difference} == {
        kind: int(kind is Difference.SCHEDULED_TOKENS) for kind in Difference
    }
    assert (logs[1]["num_plans"], logs[1]["num_dropped"]) == (0, 3)


def test_a_shadow_says_its_totals_with_each_report() -> None:
    shadow = Shadow("other", lambda: Policy(chunk_size_tokens=5))
    with capture_logs() as logs:
        for num_dropped in (3, 4):
            shadow.observe(planned_call())
            shadow.report(Missed(num_dropped=num_dropped, num_failed=1))
    counts = {"num_plans": 1, "num_different": 1, "scheduled_tokens": 1, "num_dropped": 4, "num_failed": 1}
    totals = {"num_plans": 2, "num_different": 2, "scheduled_tokens": 2, "num_dropped": 7, "num_failed": 2}
    others = dict.fromkeys(set(Difference) - {"scheduled_tokens"}, 0)
    assert {name: logs[1][name] for name in counts} == counts
    assert logs[1]["totals"] == totals | others
