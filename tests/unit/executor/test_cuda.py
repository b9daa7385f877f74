"""What only a CUDA device can show. Skipped where there is none; nothing here has run on one yet."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.attention_reference import reference_attention
from executor_service.model.attention_varlen import attend_varlen, serves_varlen
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.runner import ModelRunner
from support.engine import EngineUnderTest, limits_of
from support.paging import filled_cache, greedy, random_batch
from support.planners import SWAP, LocalPlanner
from support.tiny_models import tiny_model

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

DEVICE = "cuda:0"


def test_the_kernel_that_reads_pages_agrees_with_the_reference() -> None:
    spec = KVCacheSpec(num_layers=1, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    reasons: list[str] = []
    if not serves_varlen(spec, device=torch.device(DEVICE), num_heads=4, progress=reasons.append):
        pytest.skip(reasons[-1])
    batch = random_batch(1, block_size=16, num_decodes=7, num_chunks=4)
    cache = filled_cache(batch, dtype=torch.bfloat16, block_size=16, num_kv_heads=2, device=DEVICE)
    query = torch.randn(batch.num_tokens, 4, 16, device=DEVICE, dtype=torch.bfloat16)
    expected, attended = torch.empty_like(query), torch.empty_like(query)
    device_batch = DeviceBatch(batch, spec=cache.spec, device=torch.device(DEVICE))
    for window in (None, 1, 5, 64):
        reference_attention(query, expected, cache, batch, layer=1, scaling=0.3, window=window)
        attend_varlen(query, attended, cache, device_batch, layer=1, scaling=0.3, window=window)
        assert (attended.float() - expected.float()).abs().max() < 5e-2


def test_swap_copies_keep_their_order_with_passes() -> None:
    spec = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16)
    cache = KVCache(spec, num_blocks=64, num_swap_blocks=64, device=DEVICE)
    blocks = np.arange(64)
    slots = torch.arange(64 * 16, device=DEVICE)
    for value in range(20):
        for layer in range(2):
            content = torch.full((64 * 16, 2, 64), float(value), device=DEVICE, dtype=torch.bfloat16)
            cache.write(layer, content, content, slots)
        cache.copy_out(blocks, blocks[::-1])
        cache.clear(torch.arange(64, device=DEVICE))  # at once: the copy must have read before
        cache.copy_in(blocks[::-1], blocks)
        keys, values = cache.gather(1, torch.arange(64, device=DEVICE))
        assert (keys == value).all()
        assert (values == value).all()


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen3", "tiny-gemma3"])
def test_an_engine_on_cuda_gives_the_tokens_of_the_cpu(name: str) -> None:
    """In float32 by torch's operations, with evictions by swap."""
    limits = limits_of(block_size=4, num_blocks=16, num_swap_blocks=12)
    prompts = [list(range(start, start + 17)) for start in range(0, 60, 12)]
    answers = []
    for device in ("cpu", DEVICE):
        loaded = replace(tiny_model(name), device=torch.device(device))
        loaded.model.to(device)
        spec = KVCacheSpec.from_config(loaded.config, block_size=4, dtype=torch.float32)
        cache = KVCache(spec, num_blocks=16, num_swap_blocks=12, device=device)
        runner = ModelRunner(loaded, cache)
        served = EngineUnderTest(limits=limits, runner=runner, kv=cache, planner=LocalPlanner(SWAP))
        ids = [served.submit(prompt, 12) for prompt in prompts]
        served.run()
        assert served.engine.counters.num_evicted_swap > 0
        answers.append([served.tokens(id) for id in ids])
    assert answers[0] == answers[1]


def test_a_pass_waits_for_the_device_once() -> None:
    """For the sampled ids; torch raises at any other wait."""
    loaded = replace(tiny_model("tiny-llama"), device=torch.device(DEVICE))
    loaded.model.to(DEVICE)
    batch = random_batch(2, block_size=4, num_decodes=5, num_chunks=0)
    batch = replace(batch, logits_rows=np.arange(5))
    spec = KVCacheSpec.from_config(loaded.config, block_size=4, dtype=torch.float32)
    cache = KVCache(spec, num_blocks=int(batch.block_tables.max()) + 1, num_swap_blocks=0, device=DEVICE)
    runner = ModelRunner(loaded, cache)
    runner.execute(batch, greedy(5))
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits = runner.forward(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert runner.sample(logits, greedy(5)).next_token_ids.shape == (5,)
