"""Small workloads and small executors for the tests of the lab."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from executor_service.engine.limits import Limits
from executor_service.engine.plan import Plan
from executor_service.engine.snapshot import Latency, Snapshot
from metronome_lab.hardware.profile import Hardware
from metronome_lab.simulated.planners import CorePlanner, core_state, engine_plan
from metronome_lab.workload.requests import Workload
from scheduler_service.core.plan import plan_executor
from scheduler_service.core.policy import Policy
from scheduler_service.core.state import ClusterState
from scheduler_service.core.validate import validate
from scheduler_service.core.verify import verify
from support.engine import limits_of

LATENCY = Latency(
    pass_us=1000.0,
    prefill_token_us=10.0,
    decode_request_us=50.0,
    kv_token_us=0.25,
    swap_block_us=20.0,
    relative_error=0.0,
)


def hardware_of(**sizes: Any) -> Hardware:
    """Sixty-four blocks of 16 tokens and eight places unless said; `latency`, `prefix_scope` and so on are fields."""
    fields = {name: sizes.pop(name) for name in ("latency", "prefix_scope", "plan_wait_us") if name in sizes}
    limits: Limits = limits_of(**({"num_blocks": 64, "num_swap_blocks": 64, "max_num_batched_tokens": 128} | sizes))
    return Hardware(name="small", description="", sources=(), limits=limits, **({"latency": LATENCY} | fields))


def workload_of(*requests: tuple[int, int, int], **columns: Any) -> Workload:
    """Requests of (arrival in ms, prompt tokens, output tokens)."""
    arrival_ms, prompts, outputs = np.array(requests, dtype=np.int64).T
    fields = {"name": "test", "arrival_us": arrival_ms * 1000} | columns
    return Workload.of(num_prompt_tokens=prompts, num_output_tokens=outputs, **fields)


def drawn_workload(count: int, *, mean_gap_ms: float, seed: int = 1, **columns: Any) -> Workload:
    """Two tenants, three priorities, prompts and answers of a few blocks, and some prompts that begin alike."""
    draw = np.random.default_rng(seed)
    prompts = draw.integers(1, 1200, count)
    workload = Workload.of(
        name="drawn",
        arrival_us=np.cumsum(draw.exponential(mean_gap_ms * 1000, count)),
        num_prompt_tokens=prompts,
        num_output_tokens=draw.integers(1, 60, count),
        tenant=draw.integers(0, 2, count),
        priority=draw.integers(0, 3, count),
        tenants=("chat", "code"),
        prefixes=[np.zeros(min(int(draw.integers(0, 2)), prompt // 512), dtype=np.int32) for prompt in prompts],
    )
    return replace(workload, **columns)


class VerifyingPlanner(CorePlanner):
    """The planning core, each of whose states and plans is checked by the scheduler's own rules."""

    is_core = False

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._verified = policy

    def plan(self, snapshot: Snapshot, executor_id: str) -> Plan:
        state = core_state(snapshot, executor_id)
        validate(ClusterState(now_us=state.now_us, executors=(state,), tenants=state.tenants))
        plan = plan_executor(state, self._verified)
        violations = verify(state, plan, self._verified)
        assert not violations, violations
        return engine_plan(plan)
