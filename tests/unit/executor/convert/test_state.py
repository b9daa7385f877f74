"""Columns written as bytes are the columns written field by field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from executor_service.convert.state import cluster_state, counters_message, request_table
from executor_service.engine.books import SCHEDULER_COLUMNS
from executor_service.engine.record import Counters
from executor_service.engine.snapshot import Latency, Snapshot, take
from metronome.scheduler.v1 import state_pb2 as pb
from support.books import books_with, decoding, swapped, waiting
from support.engine import limits_of

LATENCY = Latency(
    pass_us=1.5, prefill_token_us=2.5, decode_request_us=3.5, kv_token_us=0.25, swap_block_us=9.0, relative_error=0.125
)


def random_columns(num_requests: int, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    columns = {}
    for name, dtype in SCHEDULER_COLUMNS.items():
        info = np.iinfo(dtype)  # type: ignore[type-var]
        low, high = (1, 4) if name == "status" else (info.min, info.max)
        columns[name] = rng.integers(low, high, size=num_requests, dtype=dtype, endpoint=name != "status")
    return columns


@pytest.mark.parametrize("num_requests", [0, 1, 7, 200])
def test_a_table_is_what_extending_field_by_field_makes(num_requests: int) -> None:
    columns = random_columns(num_requests, seed=num_requests)
    expected = pb.RequestTable()
    for name, column in columns.items():
        getattr(expected, name).extend(column.tolist())
    table = request_table(columns)
    assert table == expected
    assert table.SerializeToString(deterministic=True) == expected.SerializeToString(deterministic=True)


def test_negative_priorities_arrive() -> None:
    columns = random_columns(3, seed=0) | {"priority": np.array([-1, 0, -(2**31)], dtype=np.int32)}
    assert list(request_table(columns).priority) == [-1, 0, -(2**31)]


def test_every_column_of_the_books_is_one_of_the_contract() -> None:
    assert set(SCHEDULER_COLUMNS) <= set(pb.RequestTable.DESCRIPTOR.fields_by_name)


def snapshot_of(**fields: Any) -> Snapshot:
    books = books_with(limits_of(num_swap_blocks=4, **fields), decoding(1, 20), swapped(2, 17), waiting(3))
    return take(books, now_us=123, latency=LATENCY)


def test_a_state_says_all_that_a_decision_may_depend_on() -> None:
    state = cluster_state(snapshot_of(), executor_id="a")
    (executor,) = state.executors
    assert (state.now_us, executor.executor_id, executor.iteration) == (123, "a", 10)
    assert (executor.num_free_blocks, executor.num_free_swap_blocks) == (6, 2)
    assert list(state.tenants.name) == [""]
    assert list(state.tenants.service) == [37.0]
    assert sorted(executor.requests.id) == [1, 2, 3]
    for name in ("pass_us", "prefill_token_us", "decode_request_us", "kv_token_us", "swap_block_us", "relative_error"):
        assert getattr(executor.latency, name) == getattr(LATENCY, name)
    for field in pb.ExecutorLimits.DESCRIPTOR.fields:
        expected = getattr(snapshot_of().limits, field.name)
        assert getattr(executor.limits, field.name) == (expected or 0), field.name


@pytest.mark.parametrize("max_num_waiting", [None, 0, 5])
def test_no_bound_on_the_queue_differs_from_a_bound_of_nobody(max_num_waiting: int | None) -> None:
    limits = cluster_state(snapshot_of(max_num_waiting=max_num_waiting), executor_id="a").executors[0].limits
    assert limits.HasField("max_num_waiting") == (max_num_waiting is not None)
    assert limits.max_num_waiting == (max_num_waiting or 0)


def test_counters_keep_their_names() -> None:
    counters = Counters(num_iterations=1, num_output_tokens=2, num_safe_plans=3)
    message = counters_message(counters)
    assert (message.num_iterations, message.num_output_tokens, message.num_safe_plans) == (1, 2, 3)
