"""Requests onto executors."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from scheduler_service.core.executor_plan import Reason
from scheduler_service.core.placement import Placement, place
from scheduler_service.core.state import ClusterState, ExecutorState
from support.states import NOW_US, Row, executor_of, requests_of, running, waiting


def executor(name: str, *rows: Row, **settings: Any) -> ExecutorState:
    return executor_of(*rows, executor_id=name, **settings)


def placed(
    executors: list[ExecutorState],
    rows: list[Row],
    placement: Placement = Placement.LEAST_LOADED,
    cached: list[list[int]] | None = None,
    seed: int = 0,
    excluded: tuple[str, ...] = (),
) -> dict[int, str]:
    cluster = ClusterState(now_us=NOW_US, executors=tuple(executors))
    figures = np.array(cached or [[0] * len(executors)] * len(rows), dtype=np.int64)
    assignments = place(cluster, requests_of(*rows), figures, placement, seed, frozenset(excluded))
    return {a.id: a.executor_id or (a.reason.name if a.reason else "") for a in assignments}


def test_case_50_the_idle_executor_gets_the_request_and_not_the_full_one() -> None:
    full = executor("a", *(running(id, num_prompt_tokens=100) for id in range(1, 8)))
    for placement in (Placement.LEAST_LOADED, Placement.CACHED_PREFIX, Placement.POWER_OF_TWO_CHOICES):
        assert placed([full, executor("b")], [waiting(99)], placement) == {99: "b"}


def test_what_is_placed_counts_before_the_next_is() -> None:
    rows = [waiting(id, num_prompt_tokens=30, max_output_tokens=20) for id in range(1, 7)]
    where = placed([executor("a"), executor("b"), executor("c")], rows)
    assert sorted(where.values()) == ["a", "a", "b", "b", "c", "c"]


def test_round_robin_goes_round_those_that_can_take_it() -> None:
    executors = [executor("a"), executor("b", num_blocks=1), executor("c")]
    rows = [waiting(id, num_prompt_tokens=30) for id in range(1, 5)]
    assert placed(executors, rows, Placement.ROUND_ROBIN) == {1: "a", 2: "c", 3: "a", 4: "c"}


def test_a_cached_prefix_stands_against_load() -> None:
    executors = [executor("a"), executor("b", *(waiting(id, max_output_tokens=8) for id in range(1, 3)))]
    row = waiting(9, num_prompt_tokens=200, max_output_tokens=8)
    assert placed(executors, [row], Placement.CACHED_PREFIX, [[0, 192]]) == {9: "b"}
    assert placed(executors, [row], Placement.CACHED_PREFIX, [[0, 16]]) == {9: "a"}
    assert placed(executors, [row], Placement.LEAST_LOADED, [[0, 192]]) == {9: "a"}


def test_draining_and_excluded_executors_get_nothing() -> None:
    executors = [executor("a", draining=True), executor("b"), executor("c", running(1))]
    assert placed(executors, [waiting(9)], excluded=("b",)) == {9: "c"}
    assert placed(executors[:2], [waiting(9)], excluded=("b",)) == {9: "WAITING_DRAINING"}


def test_what_none_can_take_is_told_why() -> None:
    short = executor("a", num_blocks=2)
    assert placed([short], [waiting(9, num_prompt_tokens=40)]) == {9: "REJECTED_EXCEEDS_BLOCKS"}
    assert placed([short], [waiting(9, num_prompt_tokens=2000)]) == {9: "REJECTED_EXCEEDS_MODEL_LEN"}
    busy = executor("a", running(1), max_num_seqs=1, max_num_waiting=1)
    assert placed([busy], [waiting(8), waiting(9)]) == {8: "a", 9: "REJECTED_QUEUE_FULL"}
    assert placed([], [waiting(9)]) == {9: "WAITING_DRAINING"}


def test_two_choices_take_the_less_loaded_of_two_and_depend_on_the_seed_alone() -> None:
    executors = [executor(name, *(running(id) for id in range(1, 1 + load))) for load, name in enumerate("abcd")]
    rows = [waiting(id) for id in range(10, 40)]
    first = placed(executors, rows, Placement.POWER_OF_TWO_CHOICES, seed=1)
    assert first == placed(executors, rows, Placement.POWER_OF_TWO_CHOICES, seed=1)
    assert first != placed(executors, rows, Placement.POWER_OF_TWO_CHOICES, seed=2)
    assert len(set(first.values())) > 1


@pytest.mark.parametrize("placement", list(Placement))
def test_the_order_of_requests_and_executors_does_not_matter(placement: Placement) -> None:
    random = Random(7)
    executors = [executor(name, *(running(id) for id in range(1, 1 + random.randint(0, 4)))) for name in "abcde"]
    rows = [waiting(id, num_prompt_tokens=random.randint(1, 60), max_output_tokens=9) for id in range(10, 30)]
    cached = [[random.choice([0, 16]) for _ in executors] for _ in rows]
    before = placed(executors, rows, placement, cached, seed=3)
    order, turn = random.sample(range(len(rows)), len(rows)), random.sample(range(len(executors)), len(executors))
    again = placed(
        [executors[i] for i in turn],
        [rows[i] for i in order],
        placement,
        [[cached[i][j] for j in turn] for i in order],
        seed=3,
    )
    assert before == again
    assert Reason.REJECTED_QUEUE_FULL.name not in before.values()
