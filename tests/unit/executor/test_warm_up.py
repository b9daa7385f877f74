"""The passes that an executor runs before the first request."""

from __future__ import annotations

import pytest
import torch

from executor_service.engine.latency import LatencyFitter
from executor_service.engine.limits import Limits
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.runner import ModelRunner
from executor_service.warm_up import run_first_passes
from support.kernels import compiled_kernels
from support.tiny_models import MAX_MODEL_LEN, tiny_model


def limits(**changes: int) -> Limits:
    sizes = {
        "max_num_batched_tokens": 512,
        "max_num_seqs": 64,
        "block_size": 16,
        "num_blocks": 64,
        "num_swap_blocks": 0,
        "max_model_len": MAX_MODEL_LEN,
    }
    return Limits(**{**sizes, **changes}, max_num_waiting=None)


@pytest.mark.parametrize("kernels", ["torch", "compiled"])
@pytest.mark.parametrize(
    "of",
    [
        limits(),
        limits(num_blocks=1, max_num_seqs=1),
        limits(max_num_batched_tokens=1),
        limits(max_num_seqs=2, block_size=4, num_blocks=3),
        limits(max_model_len=5),
    ],
)
def test_they_fit_whatever_the_limits_are_and_make_a_latency_model(of: Limits, kernels: str) -> None:
    loaded = tiny_model("tiny-llama", kernels=compiled_kernels(torch.float32) if kernels == "compiled" else None)
    spec = KVCacheSpec.from_config(loaded.config, block_size=of.block_size, dtype=loaded.dtype)
    runner = ModelRunner(loaded, KVCache(spec, num_blocks=of.num_blocks, num_swap_blocks=0))
    passes = run_first_passes(runner, of)
    assert all(p.num_prefill_tokens + p.num_decodes <= of.max_num_batched_tokens for p in passes)
    assert all(p.num_decodes <= of.max_num_seqs for p in passes)
    latency = LatencyFitter(first_passes=passes).latency
    assert latency is not None
    assert latency.pass_us + latency.prefill_token_us + latency.decode_request_us > 0
