"""A scheduler that answers nonsense harms nobody: its plans are refused, and an honest one is obeyed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2, scheduler_pb2_grpc
from support.services import Service, running_executor, wait_until
from support.wire import TIMEOUT_SECONDS, Client, connected, greedy

Answer = scheduler_pb2.PlanResponse
Bend = Callable[[Answer], None]


class CrookedScheduler(scheduler_pb2_grpc.SchedulerServiceServicer):
    """Asks an honest scheduler, and passes its plans on as `bend` has changed them."""

    def __init__(self, honest: scheduler_pb2_grpc.SchedulerServiceStub) -> None:
        self.bend: Bend = honestly
        self._honest = honest

    def Plan(self, request: scheduler_pb2.PlanRequest, context: grpc.ServicerContext) -> Answer:
        answer: Answer = self._honest.Plan(request, timeout=TIMEOUT_SECONDS)
        self.bend(answer)
        return answer


def honestly(answer: Answer) -> None:
    """As it is."""


def rejecting(answer: Answer) -> None:
    plan = answer.plans[0]
    plan.reject.id.extend(plan.admit.id)
    plan.reject.reason.extend([plan_pb2.REASON_WAITING_FOR_BLOCKS] * len(plan.admit.id))
    plan.reject.needed.extend([14] * len(plan.admit.id))
    plan.reject.available.extend([9] * len(plan.admit.id))
    plan.ClearField("admit")
    plan.ClearField("scheduled")


def for_another_executor(answer: Answer) -> None:
    answer.plans[0].executor_id = "another"


def for_nobody(answer: Answer) -> None:
    answer.ClearField("plans")


def for_two(answer: Answer) -> None:
    answer.plans.add().CopyFrom(answer.plans[0])


def stale(answer: Answer) -> None:
    answer.plans[0].iteration -= 1


def of_strangers(answer: Answer) -> None:
    answer.plans[0].scheduled.id.append(10_000_000)
    answer.plans[0].scheduled.num_tokens.append(1)


def above_the_budget(answer: Answer) -> None:
    for row in range(len(answer.plans[0].scheduled.num_tokens)):
        answer.plans[0].scheduled.num_tokens[row] = 100_000


def of_negative_tokens(answer: Answer) -> None:
    for row in range(len(answer.plans[0].scheduled.num_tokens)):
        answer.plans[0].scheduled.num_tokens[row] = -1


def of_unequal_columns(answer: Answer) -> None:
    answer.plans[0].scheduled.num_tokens.append(1)


def evicting_who_waits(answer: Answer) -> None:
    answer.plans[0].evict.id.extend(answer.plans[0].admit.id)
    answer.plans[0].evict.mode.extend([plan_pb2.EVICT_MODE_SWAP] * len(answer.plans[0].admit.id))


def deciding_twice(answer: Answer) -> None:
    answer.plans[0].scheduled.id.extend(answer.plans[0].scheduled.id)
    answer.plans[0].scheduled.num_tokens.extend(answer.plans[0].scheduled.num_tokens)


def rejecting_in_unequal_columns(answer: Answer) -> None:
    rejecting(answer)
    answer.plans[0].reject.needed.append(1)


NONSENSE = (
    for_another_executor,
    for_nobody,
    for_two,
    stale,
    of_strangers,
    above_the_budget,
    of_negative_tokens,
    of_unequal_columns,
    evicting_who_waits,
    deciding_twice,
    rejecting_in_unequal_columns,
)


@pytest.fixture(scope="module")
def crooked(scheduler: Service) -> Iterator[tuple[CrookedScheduler, str]]:
    """The scheduler and its address."""
    with grpc.insecure_channel(scheduler.address) as channel:
        service = CrookedScheduler(scheduler_pb2_grpc.SchedulerServiceStub(channel))
        server = grpc.server(ThreadPoolExecutor(2))
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield service, f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture(scope="module")
def victim(
    crooked: tuple[CrookedScheduler, str], services_directory: Path, tiny_model_directory: Path
) -> Iterator[Client]:
    with (
        running_executor(services_directory, tiny_model_directory, scheduler=[crooked[1]]) as service,
        connected(service.address) as client,
    ):
        yield client


@pytest.fixture
def liar(crooked: tuple[CrookedScheduler, str]) -> Iterator[CrookedScheduler]:
    yield crooked[0]
    crooked[0].bend = honestly


def num_bad_plans(client: Client) -> int:
    counters = client.books().counters
    return counters.num_refused_plans + counters.num_plan_failures


@pytest.mark.parametrize("bend", NONSENSE, ids=[bend.__name__ for bend in NONSENSE])
def test_nonsense_is_refused_and_costs_nobody_anything(liar: CrookedScheduler, victim: Client, bend: Bend) -> None:
    expected = [victim.generate(greedy(f"victim {number}", 30)).tokens for number in range(2)]
    running = victim.open(greedy("victim 0", 30))
    tokens = list(next(running).delta.token_ids)
    before = num_bad_plans(victim)
    liar.bend = bend
    waiting = victim.open(greedy("victim 1", 30))
    wait_until(lambda: num_bad_plans(victim) > before)
    liar.bend = honestly
    tokens += [token_id for response in running for token_id in response.delta.token_ids]
    assert tokens == expected[0]
    assert [token_id for response in waiting for token_id in response.delta.token_ids] == expected[1]
    wait_until(victim.is_idle)


def test_a_rejection_is_told_to_the_client(liar: CrookedScheduler, victim: Client) -> None:
    before = victim.books().counters.num_rejected
    liar.bend = rejecting
    refusal = victim.refused(greedy("turned away", 4))
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "REJECTED_BY_SCHEDULER")
    assert "WAITING_FOR_BLOCKS: needs 14, there are 9" in refusal.message
    figures = {"scheduler_reason": "WAITING_FOR_BLOCKS", "needed": "14", "available": "9"}
    assert dict(refusal.info.metadata) == figures
    wait_until(victim.is_idle)
    assert victim.books().counters.num_rejected == before + 1


@pytest.mark.parametrize(
    ("reason", "seconds", "over_quota"),
    [
        (plan_pb2.REASON_REJECTED_QUEUE_FULL, 7, []),
        (plan_pb2.REASON_REJECTED_TENANT_QUEUE_FULL, 7, ["tenant:greedy"]),
        (plan_pb2.REASON_REJECTED_EXCEEDS_BLOCKS, None, []),
        (plan_pb2.REASON_REJECTED_DEADLINE, None, []),
    ],
)
def test_a_rejection_says_whether_and_when_to_come_again(
    liar: CrookedScheduler, victim: Client, reason: plan_pb2.Reason, seconds: int | None, over_quota: list[str]
) -> None:
    def rejecting_for_a_reason(answer: Answer) -> None:
        rejecting(answer)
        reject = answer.plans[0].reject
        reject.reason[:] = [reason] * len(reject.id)
        reject.estimated_wait_us.extend([7_000_000] * len(reject.id))

    liar.bend = rejecting_for_a_reason
    request = greedy("turned away", 4)
    request.tenant = "greedy"
    refusal = victim.refused(request)
    assert refusal.info.metadata["scheduler_reason"] == plan_pb2.Reason.Name(reason).removeprefix("REASON_")
    assert (refusal.retry and refusal.retry.retry_delay.seconds) == seconds
    assert refusal.over_quota == over_quota
