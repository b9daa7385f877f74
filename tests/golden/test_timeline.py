"""A small play as a trace: three requests that do not fit together, one of which is swapped out and comes back."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from metronome.scheduler.v1 import record_pb2, scheduler_pb2
from metronome_cli.timeline.from_recording import spans_of_recording
from metronome_cli.timeline.trace import write_trace
from scheduler_service.convert import plan_message
from scheduler_service.core.policy import Eviction, Policy
from scheduler_service.core.state import ExecutorLimits
from support.arithmetic_executor import ArithmeticExecutor
from support.messages import request_of

GOLDEN = Path(__file__).parent / "timeline" / "swapped_and_back.json"
POLICY = Policy(eviction=Eviction.SWAP, chunk_size_tokens=32)


def play() -> Iterator[record_pb2.PlanRecord]:
    limits = ExecutorLimits(
        max_num_batched_tokens=48, max_num_seqs=3, block_size=16, num_blocks=6, num_swap_blocks=6, max_model_len=128
    )
    executor = ArithmeticExecutor(limits, POLICY)
    executor.submit(1, prompt=40, new=12)
    executor.submit(2, prompt=31, new=20)
    executor.submit(3, prompt=20, new=2)
    while executor.requests:
        request = request_of(executor.state(), POLICY)
        response = scheduler_pb2.PlanResponse(plans=[plan_message(executor.step())])
        yield record_pb2.PlanRecord(request=request, response=response)


def test_the_trace_of_a_small_play(update_golden: bool) -> None:
    file = io.StringIO()
    summary = write_trace(spans_of_recording(play()), file)
    if update_golden:
        GOLDEN.write_text(file.getvalue(), encoding="utf-8")
    else:
        assert file.getvalue() == GOLDEN.read_text(encoding="utf-8")
    assert summary.requests == {("executor-0", request_id) for request_id in (1, 2, 3)}
