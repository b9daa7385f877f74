"""What `calibrate` reads from the passes that it watched: pauses, and what an executor does between passes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_client import AsyncInferenceClient
from metronome_lab.hardware.cost import PAUSE_US, PassCost
from metronome_lab.live.calibrate import fit_hardware

PASS_US, PLAN_WAIT_US, BETWEEN_US, PAUSE_COST_US = 10_000, 2_000, 400, 7_000


class Client:
    """An executor that has learnt something."""

    async def model_info(self) -> Any:
        return SimpleNamespace(model="tiny", dtype="float32", device="cpu")

    async def state(self) -> Any:
        executor = state_pb2.ExecutorState(latency=state_pb2.LatencyModel(pass_us=PASS_US))
        return SimpleNamespace(state=SimpleNamespace(executors=[executor]))


def fitted(passes: list[executor_pb2.Pass]) -> PassCost:
    client = cast("AsyncInferenceClient", Client())
    cost = asyncio.run(fit_hardware(client, passes, name="tiny", source="a test")).cost
    assert cost is not None
    return cost


def answers(*, pause_us: int, num_waiting: int = 0) -> list[executor_pb2.Pass]:
    """Ten requests one after the other, six tokens each; first passes wait for their plans, and take longer."""
    passes, now_us = [], 1_700_000_000_000_000
    for _ in range(10):
        for place in range(6):
            is_first = place == 0
            wait_us = PLAN_WAIT_US if is_first else 100
            time_us = PASS_US + (PAUSE_COST_US if is_first else 0)
            now_us += wait_us
            passes.append(
                executor_pb2.Pass(
                    start_time_us=now_us,
                    num_decode_requests=1,
                    num_decode_tokens=1,
                    num_kv_tokens=1,
                    num_running=1,
                    num_waiting=num_waiting,
                    num_finished=int(place == 5),
                    plan_source=executor_pb2.PLAN_SOURCE_DIRECT if is_first else executor_pb2.PLAN_SOURCE_OVERLAPPED,
                    plan_wait_us=wait_us,
                    total_us=wait_us + time_us,
                )
            )
            now_us += time_us + BETWEEN_US
        now_us += pause_us
    return passes


def test_passes_after_pauses_cost_more() -> None:
    cost = fitted(answers(pause_us=PAUSE_US))
    assert cost.after_pause_us == pytest.approx(PAUSE_COST_US, rel=0.1)
    # The first has no pass before it: how long the executor rested is not known.
    time_us = cost.time_us(num_prefill_tokens=0, num_decodes=1, num_logits_rows=1, num_kv_tokens=1)
    assert time_us == pytest.approx(PASS_US, rel=0.1)


@pytest.mark.parametrize(
    ("pause_us", "num_waiting"),
    [
        (PAUSE_US - PLAN_WAIT_US - BETWEEN_US - 1, 0),  # it is short
        (PAUSE_US, 1),  # somebody was there: it was no pause but a plan that was slow
    ],
)
def test_what_is_no_pause_is_none(pause_us: int, num_waiting: int) -> None:
    assert fitted(answers(pause_us=pause_us, num_waiting=num_waiting)).after_pause_us == 0


def test_what_an_executor_does_between_two_passes_is_told() -> None:
    cost = fitted(answers(pause_us=PAUSE_US))
    assert cost.between_us == BETWEEN_US + 100
    assert cost.ratio_quantiles == ()  # sixty passes
