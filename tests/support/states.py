"""States for tests: a builder with small defaults, and Hypothesis strategies of states that are valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from scheduler_service.core.policy import (
    Admission,
    BatchComposition,
    Eviction,
    HeadOfLine,
    Ordering,
    Policy,
    Preemption,
    PrefillSharing,
    Victim,
)
from scheduler_service.core.state import (
    COLUMN_NAMES,
    NO_TENANTS,
    CachedPrefixes,
    ClusterState,
    ExecutorLimits,
    ExecutorState,
    LatencyModel,
    Requests,
    RequestStatus,
    Tenant,
    Tenants,
)

Row = Mapping[str, int]

NOW_US = 1_000_000
TENANTS = Tenants.of(Tenant(name="a", service=40.0), Tenant(name="b", weight=2.0, service=60.0), Tenant(name="c"))
EVEN_TENANTS = Tenants.of(Tenant(name="a"), Tenant(name="b"), Tenant(name="c", weight=0.5))
LATENCY = LatencyModel(pass_us=1000, prefill_token_us=10, decode_request_us=20, kv_token_us=0.1, swap_block_us=30)


def requests_of(*rows: Row) -> Requests:
    """A request table of these rows; columns that a row leaves out are 0."""
    columns = {name: [row.get(name, 0) for row in rows] for name in COLUMN_NAMES}
    return Requests.from_columns(len(rows), columns)


def running(id: int, **columns: int) -> Row:
    """A request in decode unless said otherwise; its blocks (of 16 tokens) are those that its computed tokens take."""
    row = {"id": id, "status": RequestStatus.RUNNING, "arrival_time_us": id, "num_prompt_tokens": 16, **columns}
    row.setdefault("num_output_tokens", 1)
    row.setdefault("num_computed_tokens", row["num_prompt_tokens"] + row["num_output_tokens"] - 1)
    row.setdefault("num_blocks", -(-row["num_computed_tokens"] // 16))
    return row


def waiting(id: int, **columns: int) -> Row:
    """A request that never ran."""
    return {"id": id, "status": RequestStatus.WAITING, "arrival_time_us": id, "num_prompt_tokens": 16, **columns}


def preempted(id: int, **columns: int) -> Row:
    """A request that was evicted by recompute after one output token."""
    return waiting(id, **{"num_output_tokens": 1, "num_preemptions": 1, **columns})


def swapped(id: int, **columns: int) -> Row:
    """A request in decode that was swapped out."""
    return {**running(id, **columns), "status": RequestStatus.SWAPPED, "num_preemptions": 1}


def loading(id: int, **columns: int) -> Row:
    """A request in decode whose KV is on the way to the device."""
    return {**running(id, **columns), "status": RequestStatus.LOADING}


def executor_of(*rows: Row, **settings: Any) -> ExecutorState:
    """An executor with these requests: 8 places, a budget of 64 tokens, blocks of 16 tokens, 64 of them.

    `settings`: fields of ExecutorLimits and ExecutorState; `prefixes` as rows (parent, free blocks). Free blocks are
    those that no row holds, unless given.
    """
    limits = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "block_size": 16,
        "num_blocks": 64,
        "num_swap_blocks": 0,
        "max_model_len": 1024,
        "max_num_waiting": None,
    }
    limits |= {name: settings.pop(name) for name in list(settings) if name in limits}
    requests = requests_of(*rows)
    on_device = (requests.status == RequestStatus.RUNNING) | (requests.status == RequestStatus.LOADING)
    held = int(((requests.num_blocks - requests.num_shared_blocks) * on_device).sum())
    in_swap = int((requests.num_blocks * (requests.status == RequestStatus.SWAPPED)).sum())
    fields: dict[str, Any] = {
        "executor_id": "executor-0",
        "iteration": 10,
        "now_us": NOW_US,
        "num_free_blocks": limits["num_blocks"] - held,
        "num_free_swap_blocks": limits["num_swap_blocks"] - in_swap,
    }
    prefixes = np.array(settings.pop("prefixes", ()), dtype=np.int64).reshape(-1, 2)
    return ExecutorState(
        limits=ExecutorLimits(**limits),
        requests=requests,
        prefixes=CachedPrefixes(prefixes[:, 0].copy(), prefixes[:, 1].copy()),
        **(fields | settings),
    )


def cluster_of(*executors: ExecutorState) -> ClusterState:
    """A cluster of these executors, with the tenants of the first."""
    return ClusterState(now_us=NOW_US, executors=executors, tenants=executors[0].tenants if executors else NO_TENANTS)


def permuted(executor: ExecutorState, order: np.ndarray) -> Requests:
    """The same requests in another row order."""
    return Requests(executor.requests.matrix[:, np.asarray(order, dtype=np.int64)])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Policies that are offered, each setting combined with any other that it does not exclude."""
    ordering, admission = draw(st.sampled_from(Ordering)), draw(st.sampled_from(Admission))
    excluded = set()
    if admission is not Admission.RESERVE:
        excluded.add(Preemption.NEVER)
    if ordering is not Ordering.PRIORITY:
        excluded.add(Preemption.FOR_PRIORITY)
    limits = st.sampled_from([None, None, 0, 1, 3])
    return Policy(
        ordering=ordering,
        aging_seconds=draw(st.sampled_from([1e-6, 2e-6, 10.0])),
        admission=admission,
        watermark=draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])),
        preemption=draw(st.sampled_from([choice for choice in Preemption if choice not in excluded])),
        victim=draw(st.sampled_from(Victim)),
        max_preemptions=draw(st.sampled_from([None, 0, 1])),
        eviction=draw(st.sampled_from(Eviction)),
        chunk_size_tokens=draw(st.sampled_from([1, 3, 16, 512])),
        max_num_partial_prefills=draw(st.sampled_from([None, 1, 2])),
        prefill_sharing=draw(st.sampled_from(PrefillSharing)),
        target_inter_token_latency_us=draw(st.sampled_from([None, 1, 1100])),
        max_inter_token_slowdown=draw(st.sampled_from([0.0, 0.5, 1.0, 1.5, 1e6])),
        batch_composition=draw(st.sampled_from(BatchComposition)),
        head_of_line=draw(st.sampled_from(HeadOfLine)),
        max_times_overtaken=draw(st.sampled_from([0, 1, 2, 16])),
        hold_for_shared_prefix=draw(st.booleans()),
        kv_residency_charge=draw(st.sampled_from([0.0, 0.0, 0.5, 1e6])),
        max_num_waiting=draw(limits),
        max_num_waiting_per_tenant=draw(limits),
        reject_missed_deadlines=draw(st.booleans()),
        target_time_to_first_token_us=draw(st.sampled_from([1, 500, 2_000])),
        ordering_within_tenant=draw(st.sampled_from([one for one in Ordering if one is not Ordering.FAIR])),
    )


@st.composite
def request_rows(draw: st.DrawFn, id: int, block_size: int) -> dict[str, int]:
    """One row that does not contradict itself."""
    status = draw(st.sampled_from(RequestStatus))
    num_prompt = draw(st.integers(1, 40))
    num_output = 0 if draw(st.booleans()) else draw(st.integers(1, 30))
    on_device_or_swap = status is not RequestStatus.WAITING
    lacks = 1 if num_output > 0 and on_device_or_swap and draw(st.booleans()) else draw(st.integers(1, 40))
    num_computed = max(num_prompt + num_output - lacks, 0)
    num_blocks = -(-num_computed // block_size)
    return {
        "id": id,
        "status": status,
        "arrival_time_us": draw(st.integers(0, 4)),
        "priority": draw(st.sampled_from([0, 0, 1, -2])),
        "tenant": draw(st.integers(0, len(TENANTS) - 1)),
        "deadline_us": draw(st.sampled_from([0, 0, NOW_US - 1, NOW_US + 3000])),
        "num_prompt_tokens": num_prompt,
        "num_output_tokens": num_output,
        "num_computed_tokens": num_computed,
        "max_output_tokens": draw(st.sampled_from([0, 1, 8, 40])),
        "expected_output_tokens": draw(st.sampled_from([0, 0, 5, 30])),
        "num_draft_tokens": draw(st.sampled_from([0, 0, 0, 1, 5])),
        "num_blocks": num_blocks,
        "num_shared_blocks": draw(st.sampled_from([0, 0, num_blocks, num_blocks // 2])),
        "num_preemptions": draw(st.sampled_from([0, 0, 1, 3])),
        "last_run_iteration": draw(st.integers(0, 9)),
        "times_overtaken": draw(st.sampled_from([0, 0, 1, 15])),
        "next_block_hash": draw(st.sampled_from([0, 0, 1, -(2**63), 2**63 - 1])),
    }


def share_prefixes(
    rows: Sequence[dict[str, int]], num_free: int, choose: Callable[[Sequence[int]], int]
) -> list[tuple[int, int]]:
    """Give some of those that wait cached prefixes in common, in so many free blocks. Returns them as rows."""
    prefixes: list[tuple[int, int]] = []
    num_reused = [0]
    for _ in range(choose([0, 0, 1, 3])):
        num_blocks = min(choose([0, 1, 1, 2]), num_free)
        num_free -= num_blocks
        parent = choose(range(len(num_reused)))
        prefixes.append((parent, num_blocks))
        num_reused.append(num_reused[parent] + num_blocks)
    for row in rows:
        if row["status"] == RequestStatus.WAITING:
            alone = row["num_blocks"] - row["num_shared_blocks"]
            row["cached_prefix"] = choose([prefix for prefix, count in enumerate(num_reused) if count <= alone])
    return prefixes


@st.composite
def executors(draw: st.DrawFn) -> ExecutorState:
    """Any valid state of up to twelve requests, crowded more often than not."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    ids = draw(st.lists(st.integers(1, 50), max_size=12, unique=True))
    rows = [draw(request_rows(id, block_size)) for id in ids]
    device = [r for r in rows if r["status"] in (RequestStatus.RUNNING, RequestStatus.LOADING)]
    held = sum(row["num_blocks"] - row["num_shared_blocks"] for row in device)
    in_swap = sum(row["num_blocks"] for row in rows if row["status"] == RequestStatus.SWAPPED)
    on_device = [row["num_blocks"] for row in rows if row["status"] != RequestStatus.SWAPPED]
    free = draw(st.integers(0, 12))
    prefixes = share_prefixes(rows, free, lambda choices: draw(st.sampled_from(choices)))
    free_swap = draw(st.integers(0, 8))
    return executor_of(
        *rows,
        prefixes=prefixes,
        block_size=block_size,
        max_num_seqs=max(len(device) + draw(st.integers(0, 4)), 1),
        max_num_batched_tokens=draw(st.sampled_from([1, 2, 5, 32, 512])),
        num_blocks=max([held + free, 1, *on_device]),
        num_free_blocks=free,
        num_swap_blocks=in_swap + free_swap,
        max_model_len=draw(st.sampled_from([20, 64, 1024])),
        latency=draw(st.sampled_from([None, LATENCY])),
        tenants=draw(st.sampled_from([TENANTS, EVEN_TENANTS])),
        draining=draw(st.sampled_from([False, False, False, True])),
    )
