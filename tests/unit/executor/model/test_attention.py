"""The fast path of paged attention against the reference, and the reference against attention without pages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.kernels.cpu import Contexts
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.attention_paged import attend_decode_groups, attend_prefill_chunks
from executor_service.model.attention_reference import reference_attention
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from support.kernels import compiled_kernels
from support.paging import filled_cache, random_batch

# float32: sums of up to 200 products in another order. bfloat16 has 8 bits: scores of up to 8 are rounded by up to
# 1/64, which moves weights by as much, and so do the roundings of weights and outputs.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 5e-2}
SCALING = 0.3


def reference(query: torch.Tensor, kv_cache: KVCache, batch: RaggedBatch, **how: Any) -> torch.Tensor:
    output = torch.empty_like(query)
    reference_attention(query, output, kv_cache, batch, scaling=SCALING, **how)
    return output


def paged(
    query: torch.Tensor, kv_cache: KVCache, batch: DeviceBatch, *, layer: int, window: int | None
) -> torch.Tensor:
    output = torch.empty_like(query)
    attend_decode_groups(query, output, kv_cache, batch.decode_groups(window), layer=layer, scaling=SCALING)
    attend_prefill_chunks(query, output, kv_cache, batch.prefill_chunks(window), layer=layer, scaling=SCALING)
    return output


def by_kernel(
    query: torch.Tensor,
    kv_cache: KVCache,
    batch: RaggedBatch,
    *,
    layer: int,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """A batch of decodes alone."""
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    key_blocks, value_blocks = kv_cache.layer_blocks(layer)
    contexts = Contexts(
        key_blocks=key_blocks,
        value_blocks=value_blocks,
        block_tables=batch.block_tables,
        context_lens=batch.context_lens,
        scaling=SCALING,
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    compiled_kernels(query.dtype).attend_decodes(query, output, contexts)
    return output


def device_batch(batch: RaggedBatch, kv_cache: KVCache) -> DeviceBatch:
    return DeviceBatch(batch, spec=kv_cache.spec, device=torch.device("cpu"))


def queries(batch: RaggedBatch, num_heads: int, dtype: torch.dtype, *, head_dim: int = 16) -> torch.Tensor:
    """[T, H, D] with the strides that the module code of a model produces: heads before tokens."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(num_heads, batch.num_tokens, head_dim, generator=generator).to(dtype).transpose(0, 1)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (3, 3), (8, 2)])
@pytest.mark.parametrize("window", [None, 1, 5, 16, 64, 1000])
@pytest.mark.parametrize(("num_decodes", "num_chunks"), [(9, 0), (0, 5), (7, 4)])
def test_the_paged_path_agrees_with_the_reference(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, window: int | None, num_decodes: int, num_chunks: int
) -> None:
    for seed, block_size in enumerate((1, 4, 16)):
        batch = random_batch(seed, block_size=block_size, num_decodes=num_decodes, num_chunks=num_chunks)
        kv_cache = filled_cache(batch, dtype=dtype, block_size=block_size, num_kv_heads=num_kv_heads)
        query = queries(batch, num_heads, dtype)
        expected = reference(query, kv_cache, batch, layer=1, window=window)
        attended = paged(query, kv_cache, device_batch(batch, kv_cache), layer=1, window=window)
        assert (attended.float() - expected.float()).abs().max() < TOLERANCES[dtype]


def test_decodes_are_cut_into_groups_and_agree_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("executor_service.model.device_batch.DECODE_GROUP_BYTES", 32 * 1024)
    batch = random_batch(5, block_size=4, num_decodes=30, num_chunks=0)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=2)
    query = queries(batch, 4, torch.float32)
    plan = device_batch(batch, kv_cache)
    groups = plan.decode_groups(None)
    assert len(groups) > 3
    assert sorted(torch.cat([group.rows for group in groups]).tolist()) == list(range(30))
    expected = reference(query, kv_cache, batch, layer=0)
    attended = paged(query, kv_cache, plan, layer=0, window=None)
    assert (attended - expected).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("window", [None, 3, 20])
def test_chunks_are_cut_into_query_blocks_and_agree_with_the_reference(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("executor_service.model.device_batch.QUERY_BLOCK_SIZE", 7)
    batch = random_batch(9, block_size=4, num_decodes=1, num_chunks=8)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=2)
    query = queries(batch, 4, torch.float32)
    plan = device_batch(batch, kv_cache)
    assert max(len(chunk.query_blocks) for chunk in plan.prefill_chunks(window)) > 3
    expected = reference(query, kv_cache, batch, layer=0, window=window)
    attended = paged(query, kv_cache, plan, layer=0, window=window)
    assert (attended - expected).abs().max() < TOLERANCES[torch.float32]


def test_a_sliding_layer_gathers_only_the_blocks_of_its_window() -> None:
    batch = random_batch(6, block_size=4, num_decodes=8, num_chunks=3)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=1)
    plan = device_batch(batch, kv_cache)
    assert all(
        len(group.blocks) <= len(group.rows) * 3 for group in plan.decode_groups(8)
    )  # 8 tokens touch 3 blocks of 4
    for chunk in plan.prefill_chunks(8):
        num_queries = chunk.query_blocks[-1].stop - chunk.query_blocks[0].start
        assert len(chunk.blocks) * 4 <= num_queries + (8 - 1) + 2 * (4 - 1)


def test_a_window_that_no_context_exceeds_is_planned_as_full_attention() -> None:
    batch = random_batch(8, block_size=4, num_decodes=3, num_chunks=3)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=1)
    plan = device_batch(batch, kv_cache)
    longest = int(batch.context_lens.max())
    for groups_or_chunks in (plan.decode_groups, plan.prefill_chunks):
        assert groups_or_chunks(longest) is groups_or_chunks(None)
        assert groups_or_chunks(longest - 1) is not groups_or_chunks(None)


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One whole prompt, written down from the definition: one query, one head, one key at a time. All [T, H, D]."""
    output = torch.zeros_like(query)
    for token in range(len(query)):
        first = 0 if window is None else max(0, token - window + 1)
        for head in range(query.shape[1]):
            scores = [float(query[token, head] @ keys[key, head]) * SCALING for key in range(first, token + 1)]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            weights = [math.exp(score) for score in scores]
            total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
            for key, weight in enumerate(weights, start=first):
                output[token, head] += weight / total * values[key, head]
    return output


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0])])
def test_the_reference_is_attention(window: int | None, softcap: float | None, sinks: torch.Tensor | None) -> None:
    num_tokens, num_heads = 11, 2
    generator = torch.Generator().manual_seed(1)
    query, keys, values = torch.randn(3, num_tokens, num_heads, 16, generator=generator)
    batch = RaggedBatch(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=np.arange(num_tokens),
        query_lens=np.array([num_tokens], dtype=np.int32),
        context_lens=np.array([num_tokens], dtype=np.int32),
        block_tables=np.array([[4, 0, 2]], dtype=np.int32),
        num_decodes=0,
        logits_rows=np.array([num_tokens - 1]),
    )
    spec = KVCacheSpec(num_layers=1, num_kv_heads=num_heads, head_dim=16, block_size=4, dtype=torch.float32)
    kv_cache = KVCache(spec, num_blocks=5, num_swap_blocks=0)
    kv_cache.write(0, keys, values, torch.from_numpy(batch.slot_mapping(4)))
    attended = reference(query, kv_cache, batch, layer=0, window=window, softcap=softcap, sinks=sinks)
    expected = dense_attention(query, keys, values, window=window, softcap=softcap, sinks=sinks)
    assert (attended - expected).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (3, 3), (7, 1)])
@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_the_kernel_for_decodes_agrees_with_the_reference(
    dtype: torch.dtype, num_heads: int, num_kv_heads: int, window: int | None, softcap: float | None, has_sinks: bool
) -> None:
    sinks = torch.linspace(-1, 2, num_heads) if has_sinks else None
    for seed, block_size in enumerate((1, 3, 16)):
        batch = random_batch(seed, block_size=block_size, num_decodes=9, num_chunks=0)
        kv_cache = filled_cache(batch, dtype=dtype, block_size=block_size, num_kv_heads=num_kv_heads)
        query = queries(batch, num_heads, dtype)
        expected = reference(query, kv_cache, batch, layer=1, window=window, softcap=softcap, sinks=sinks)
        attended = by_kernel(query, kv_cache, batch, layer=1, window=window, softcap=softcap, sinks=sinks)
        assert (attended.float() - expected.float()).abs().max() < TOLERANCES[dtype]


def test_the_kernel_reads_nothing_beyond_a_context() -> None:
    batch = random_batch(1, block_size=4, num_decodes=6, num_chunks=0)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=1)
    query = queries(batch, 2, torch.float32)
    expected = reference(query, kv_cache, batch, layer=0)
    used = {
        int(table[position // 4]) * 4 + position % 4
        for table, length in zip(batch.block_tables, batch.context_lens, strict=True)
        for position in range(length)
    }
    unused = torch.tensor(sorted(set(range(kv_cache.num_blocks * 4)) - used))
    poison = torch.full((len(unused), 1, 16), float("nan"))
    kv_cache.write(0, poison, poison, unused)
    attended = by_kernel(query, kv_cache, batch, layer=0)
    assert (attended - expected).abs().max() < TOLERANCES[torch.float32]


def test_a_request_that_is_not_finite_leaves_the_others_of_the_kernel_alone() -> None:
    batch = random_batch(2, block_size=4, num_decodes=5, num_chunks=0)
    kv_cache = filled_cache(batch, dtype=torch.float32, block_size=4, num_kv_heads=1)
    query = queries(batch, 2, torch.float32)
    expected = reference(query, kv_cache, batch, layer=0)
    slot = torch.tensor([int(batch.block_tables[2, 0]) * 4])
    poison = torch.full((1, 1, 16), float("nan"))
    kv_cache.write(0, poison, poison, slot)
    attended = by_kernel(query, kv_cache, batch, layer=0)
    assert attended[2].isnan().all()
    others = torch.tensor([0, 1, 3, 4])
    assert (attended - expected)[others].abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("head_dim", [8, 24, 80, 256])
def test_the_kernel_for_decodes_takes_heads_of_any_size(dtype: torch.dtype, head_dim: int) -> None:
    batch = random_batch(4, block_size=4, num_decodes=5, num_chunks=0)
    kv_cache = filled_cache(batch, dtype=dtype, block_size=4, num_kv_heads=2, head_dim=head_dim)
    query = queries(batch, 6, dtype, head_dim=head_dim)
    expected = reference(query, kv_cache, batch, layer=1)
    attended = by_kernel(query, kv_cache, batch, layer=1)
    # Scores grow with the root of the size, and what bfloat16 rounds of them with it.
    assert (attended.float() - expected.float()).abs().max() < TOLERANCES[dtype] * max(1, head_dim / 16) ** 0.5


def chunks_by_kernel(
    query: torch.Tensor,
    kv_cache: KVCache,
    batch: RaggedBatch,
    *,
    layer: int,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The chunks of a batch; the rows of decodes are zero."""
    kernels = compiled_kernels(query.dtype)
    if not kernels.serves_chunks(query.shape[-1]):
        pytest.skip("this processor has no AVX2")
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    key_blocks, value_blocks = kv_cache.layer_blocks(layer)
    contexts = Contexts(
        key_blocks=key_blocks,
        value_blocks=value_blocks,
        block_tables=batch.block_tables[batch.num_decodes :],
        context_lens=batch.context_lens[batch.num_decodes :],
        scaling=SCALING / 2,  # scores are larger than with the other tests' smaller heads
        window=window,
        softcap=softcap,
        sinks=sinks,
    )
    kernels.attend_chunks(query, output, contexts, batch.query_starts()[batch.num_decodes :])
    return output


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (3, 3), (7, 1), (40, 1)])
@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_the_kernel_for_chunks_agrees_with_the_reference(
    num_heads: int, num_kv_heads: int, window: int | None, softcap: float | None, has_sinks: bool
) -> None:
    sinks = torch.linspace(-1, 2, num_heads) if has_sinks else None
    for seed, (block_size, head_dim) in enumerate(((1, 32), (3, 96), (16, 64))):
        batch = random_batch(seed, block_size=block_size, num_decodes=2, num_chunks=5)
        kv_cache = filled_cache(
            batch, dtype=torch.bfloat16, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim
        )
        query = queries(batch, num_heads, torch.bfloat16, head_dim=head_dim)
        how: dict[str, Any] = {"layer": 1, "window": window, "softcap": softcap, "sinks": sinks}
        expected = torch.zeros_like(query)
        reference_attention(query, expected, kv_cache, batch, first_request=2, scaling=SCALING / 2, **how)
        attended = chunks_by_kernel(query, kv_cache, batch, **how)
        assert (attended.float() - expected.float())[2:].abs().max() < TOLERANCES[torch.bfloat16]
        assert not attended[:2].any()


def long_chunk(num_tokens: int, context_len: int) -> RaggedBatch:
    """The last tokens of one prompt, in blocks of 16 that lie in no order."""
    num_blocks = -(-context_len // 16)
    blocks = np.random.default_rng(5).permutation(num_blocks).astype(np.int32)
    return RaggedBatch(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=np.arange(context_len - num_tokens, context_len),
        query_lens=np.array([num_tokens], dtype=np.int32),
        context_lens=np.array([context_len], dtype=np.int32),
        block_tables=blocks[None, :],
        num_decodes=0,
        logits_rows=np.array([num_tokens - 1]),
    )


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize(("num_tokens", "context_len"), [(1, 700), (33, 1000), (300, 300)])
def test_chunks_over_more_keys_than_are_scored_at_once(num_tokens: int, context_len: int, window: int | None) -> None:
    batch = long_chunk(num_tokens, context_len)
    kv_cache = filled_cache(batch, dtype=torch.bfloat16, block_size=16, num_kv_heads=1, head_dim=64)
    query = queries(batch, 2, torch.bfloat16, head_dim=64)
    expected = torch.zeros_like(query)
    reference_attention(query, expected, kv_cache, batch, layer=0, scaling=SCALING / 2, window=window)
    attended = chunks_by_kernel(query, kv_cache, batch, layer=0, window=window)
    assert (attended.float() - expected.float()).abs().max() < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("window", [None, 40])
def test_the_kernel_for_chunks_reads_nothing_that_no_token_sees(window: int | None) -> None:
    """Neither beyond a context nor before a window: whose pages those are is not known."""
    batch = long_chunk(20, 150)
    kv_cache = filled_cache(batch, dtype=torch.bfloat16, block_size=16, num_kv_heads=1, head_dim=32)
    query = queries(batch, 2, torch.bfloat16, head_dim=32)
    expected = chunks_by_kernel(query, kv_cache, batch, layer=0, window=window)
    first = 0 if window is None else 130 - window + 1
    table = batch.block_tables[0]
    unseen = [position for position in range(len(table) * 16) if not first <= position < 150]
    slots = torch.tensor([int(table[position // 16]) * 16 + position % 16 for position in unseen])
    poison = torch.full((len(unseen), 1, 32), float("nan"), dtype=torch.bfloat16)
    kv_cache.write(0, poison, poison, slots)
    assert torch.equal(chunks_by_kernel(query, kv_cache, batch, layer=0, window=window), expected)


def test_a_chunk_that_is_not_finite_leaves_the_others_alone() -> None:
    batch = random_batch(3, block_size=4, num_decodes=0, num_chunks=4)
    kv_cache = filled_cache(batch, dtype=torch.bfloat16, block_size=4, num_kv_heads=1, head_dim=32)
    query = queries(batch, 2, torch.bfloat16, head_dim=32)
    expected = chunks_by_kernel(query, kv_cache, batch, layer=0)
    slot = torch.tensor([int(batch.block_tables[1, 0]) * 4])
    poison = torch.full((1, 1, 32), float("nan"), dtype=torch.bfloat16)
    kv_cache.write(0, poison, poison, slot)
    attended = chunks_by_kernel(query, kv_cache, batch, layer=0)
    start, stop = batch.query_starts()[1:3]
    assert attended[start:stop].isnan().all()
    attended[start:stop] = expected[start:stop] = 0.0
    assert torch.equal(attended, expected)
