"""A hardware profile of a real executor: its sizes, the latency model that it has fitted to its own passes, and what
these passes cost, fitted here in more detail.

An executor learns what passes cost from those that it runs, so it is given a mix to run first: prompts of all lengths,
alone and in bursts, and answers long enough that many decode together. Best is a part of the traffic to be simulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from executor_service.engine.limits import Limits
from executor_service.engine.snapshot import Latency
from metronome.executor.v1 import executor_pb2
from metronome.scheduler.v1 import state_pb2
from metronome_client import AsyncInferenceClient
from metronome_lab.errors import LabError
from metronome_lab.hardware.cost import PAUSE_US, MeasuredPasses, fit_pass_cost
from metronome_lab.hardware.profile import Hardware
from metronome_lab.live.replay import replay
from metronome_lab.workload.generate import generate
from metronome_lab.workload.requests import Workload

# Passes of each kind that an executor's fit looks back on are two seconds to a minute of traffic.
NUM_REQUESTS = 60


def mix(max_model_len: int, *, num_requests: int = NUM_REQUESTS, seed: int = 0) -> Workload:
    """Requests that come in bursts, with prompts of up to a quarter of what the model takes."""
    longest = max(max_model_len // 4, 1)
    stream = {
        "arrivals": {"kind": "gamma", "rate": 4.0, "cv": 2.0},
        "prompt_tokens": {"kind": "lognormal", "median": max(longest // 8, 1), "sigma": 1.0, "most": longest},
        "output_tokens": {"kind": "lognormal", "median": 24, "sigma": 0.7, "most": 128},
    }
    return generate({"num_requests": num_requests, "streams": [stream]}, name="mix", seed=seed)


async def calibrate(
    client: AsyncInferenceClient,
    workload: Workload | None = None,
    *,
    name: str,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda num_ended: None,
) -> Hardware:
    """Run a workload, a mix unless given, and fit a profile to its passes. Raises LabError, and MetronomeError."""
    workload = workload or mix((await client.model_info()).max_model_len, seed=seed)
    _, passes = await replay(client, workload, seed=seed, on_progress=on_progress)
    return await fit_hardware(client, passes, name=name, source=f"a run of {len(workload)} requests of {workload.name}")


async def fit_hardware(
    client: AsyncInferenceClient, passes: list[executor_pb2.Pass], *, name: str, source: str
) -> Hardware:
    """A profile of the executor that ran these passes. Raises LabError, and MetronomeError."""
    info, state = await client.model_info(), (await client.state()).state.executors[0]
    if not state.HasField("latency"):
        raise LabError("the executor has no latency model yet", "give it more to run")
    return Hardware(
        name=name,
        description=f"{info.model} in {info.dtype} on {info.device}, fitted from {len(passes):,} passes.",
        sources=(source,),
        latency=_latency(state.latency),
        limits=_limits(state.limits),
        cost=fit_pass_cost(
            measured_passes(passes), swap_block_us=state.latency.swap_block_us, between_us=_between_us(passes)
        ),
        plan_wait_us=_plan_wait_us(passes),
    )


def _plan_wait_us(passes: list[executor_pb2.Pass]) -> int:
    """What a pass waits whose plan was not asked for ahead; the median."""
    waits = [one.plan_wait_us for one in passes if one.plan_source == executor_pb2.PLAN_SOURCE_DIRECT]
    return round(statistics.median(waits)) if waits else 0


def _between_us(passes: list[executor_pb2.Pass]) -> float:
    """From the end of a pass to the next, where somebody is there and the plan was asked for ahead; the median."""
    times = [
        _pause_us(before, one)
        for before, one in pairwise(passes)
        if one.plan_source == executor_pb2.PLAN_SOURCE_OVERLAPPED and _leaves_some(before)
    ]
    return max(statistics.median(times), 0.0) if times else 0.0


def _pause_us(before: executor_pb2.Pass, one: executor_pb2.Pass) -> int:
    """From the end of a pass to the beginning of the next. It began when it had its plan; what it took in all has the
    wait for the plan in it.
    """
    return one.start_time_us - (before.start_time_us + before.total_us - before.plan_wait_us)


def _leaves_some(one: executor_pb2.Pass) -> bool:
    """Whether anybody is left, of those that were there when it began."""
    return one.num_running + one.num_waiting + one.num_swapped > one.num_finished


def measured_passes(passes: list[executor_pb2.Pass]) -> MeasuredPasses:
    """What they held. Raises LabError where the executor does not tell it."""
    if not any(one.num_kv_tokens for one in passes):
        raise LabError("the executor does not tell how many tokens of KV its passes read", "it is of an older release")
    return MeasuredPasses(
        num_prefill_tokens=np.array([one.num_prefill_tokens for one in passes]),
        num_decodes=np.array([one.num_decode_requests for one in passes]),
        # One of an older release tells no rows of logits; each decode has one.
        num_logits_rows=np.array([max(one.num_logits_rows, one.num_decode_requests) for one in passes]),
        num_kv_tokens=np.array([one.num_kv_tokens for one in passes]),
        num_chunk_kv_tokens=np.array([one.num_chunk_kv_tokens for one in passes]),
        are_after_pauses=np.array(
            [False]
            + [not _leaves_some(before) and _pause_us(before, one) >= PAUSE_US for before, one in pairwise(passes)]
        ),
        times_us=np.array([one.total_us - one.plan_wait_us for one in passes]),
    )


def _latency(model: state_pb2.LatencyModel) -> Latency:
    return Latency(
        pass_us=model.pass_us,
        prefill_token_us=model.prefill_token_us,
        decode_request_us=model.decode_request_us,
        kv_token_us=model.kv_token_us,
        swap_block_us=model.swap_block_us,
        relative_error=model.relative_error,
    )


def _limits(limits: state_pb2.ExecutorLimits) -> Limits:
    return Limits(
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        num_swap_blocks=limits.num_swap_blocks,
        max_model_len=limits.max_model_len,
        max_num_waiting=limits.max_num_waiting if limits.HasField("max_num_waiting") else None,
    )
