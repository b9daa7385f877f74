"""The scheduler of an installed vLLM, timed: run with the Python of an environment that has it, and nothing of ours.

    python vllm_scheduler.py --iterations 100 8,8 64,64

For each size (requests that run, requests that wait) the scheduler is brought to where that many requests decode, each
place of the batch is taken, and the rest waits. Then it schedules and takes in the sampled tokens of one pass after the
other, as its engine has it do. Prefix caching, and with it the hashing of blocks, is off. One JSON object a size on
stdout; its logs go to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "HF_HUB_OFFLINE": "1"}

import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK_SIZE = 16
MAX_MODEL_LEN = 4096
TOKEN_BUDGET = 8192
PROMPT_TOKENS = (32, 2048)
# A model's configuration is required; no weights are read.
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1024,
    "max_position_embeddings": MAX_MODEL_LEN,
    "torch_dtype": "bfloat16",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="+", help="running,waiting")
    parser.add_argument("--iterations", type=int, default=100, help="of each size, timed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        for size in args.sizes:
            num_running, num_waiting = map(int, size.split(","))
            times = _times(_busy_scheduler(directory, num_running, num_waiting), num_running, args.iterations)
            print(json.dumps({"num_running": num_running, "num_waiting": num_waiting, **times}), flush=True)


def _times(scheduler: Any, num_running: int, num_iterations: int) -> dict[str, list[float]]:
    """Microseconds of each iteration, from the second on: the first meets the waiting requests for the first time."""
    times: dict[str, list[float]] = {"schedule_us": [], "update_us": []}
    for iteration in range(num_iterations + 1):
        started = time.perf_counter_ns()
        scheduled = scheduler.schedule()
        schedule_ns = time.perf_counter_ns() - started
        sampled = _sampled(scheduler, scheduled)
        started = time.perf_counter_ns()
        scheduler.update_from_output(scheduled, sampled)
        update_ns = time.perf_counter_ns() - started
        assert len(scheduled.num_scheduled_tokens) == len(scheduler.running) == num_running
        if iteration > 0:
            times["schedule_us"].append(schedule_ns / 1000)
            times["update_us"].append(update_ns / 1000)
    return times


def _busy_scheduler(model: str, num_running: int, num_waiting: int) -> Any:
    """All of the running set decodes."""
    draw = random.Random(0)
    requests = [_request(index, draw.randint(*PROMPT_TOKENS)) for index in range(num_running + num_waiting)]
    scheduler = _scheduler(model, num_running)
    for request in requests[:num_running]:
        scheduler.add_request(request)
    while any(request.num_output_tokens == 0 for request in requests[:num_running]):
        scheduled = scheduler.schedule()
        scheduler.update_from_output(scheduled, _sampled(scheduler, scheduled))
    for request in requests[num_running:]:
        scheduler.add_request(request)
    return scheduler


def _scheduler(model: str, max_num_seqs: int) -> Any:
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=TOKEN_BUDGET,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        async_scheduling=False,
    ).create_engine_config()
    num_blocks = max_num_seqs * MAX_MODEL_LEN // BLOCK_SIZE + 1  # nobody is ever preempted
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    cache = KVCacheConfig(
        num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_SIZE,
    )


def _request(index: int, num_prompt_tokens: int) -> Request:
    return Request(
        request_id=str(index),
        prompt_token_ids=[1] * num_prompt_tokens,
        sampling_params=SamplingParams(ignore_eos=True, max_tokens=MAX_MODEL_LEN - num_prompt_tokens),
        pooling_params=None,
    )


def _sampled(scheduler: Any, scheduled: Any) -> ModelRunnerOutput:
    """A token for each request of the batch whose prompt is computed."""
    requests = [scheduler.requests[request_id] for request_id in scheduled.num_scheduled_tokens]
    return ModelRunnerOutput(
        req_ids=[request.request_id for request in requests],
        req_id_to_index={request.request_id: index for index, request in enumerate(requests)},
        sampled_token_ids=[[2] if request.num_computed_tokens >= request.num_tokens else [] for request in requests],
    )


if __name__ == "__main__":
    sys.exit(main())
