"""What is asked of torch's `varlen_attn` is the attention of the reference.

No kernel of torch's serves it on the CPU, so a plain one that keeps the documented meaning of its arguments stands for
it here; `test_cuda.py` asks the real one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor_service.kv.cache import KVCacheSpec
from executor_service.model import attention_varlen
from executor_service.model.attention_reference import reference_attention
from executor_service.model.attention_varlen import attend_varlen, serves_varlen
from executor_service.model.device_batch import DeviceBatch
from support.paging import filled_cache, random_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
SPEC = KVCacheSpec(num_layers=2, num_kv_heads=2, head_dim=16, block_size=4, dtype=torch.bfloat16)


def plain_varlen_attn_out(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """By the documentation of torch 2.13: causal where the window's right side is 0, aligned at the end of the keys."""
    assert cu_seq_k is None
    assert {cu_seq_q.dtype, seqused_k.dtype, block_table.dtype} == {torch.int32}
    assert enable_gqa or query.shape[1] == key.shape[2]
    assert max_q == int((cu_seq_q[1:] - cu_seq_q[:-1]).max())
    assert max_k == int(seqused_k.max())
    left, right = window_size
    assert right == 0
    for request, table in enumerate(block_table.tolist()):
        start, stop, length = int(cu_seq_q[request]), int(cu_seq_q[request + 1]), int(seqused_k[request])
        keys, values = (
            pages[table].flatten(0, 1)[:length].repeat_interleave(query.shape[1] // key.shape[2], dim=1).float()
            for pages in (key, value)
        )
        own = torch.arange(length - (stop - start), length)[:, None]
        others = torch.arange(length)
        visible = (others <= own) & ((others >= own - left) | (left < 0))
        scores = torch.einsum("nhd,chd->hnc", query[start:stop].float(), keys) * scale
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out[start:stop] = torch.einsum("hnc,chd->nhd", weights, values).to(out.dtype)
    return out


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn_out", plain_varlen_attn_out)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("window", [None, 1, 5, 16, 1000])
@pytest.mark.parametrize(("num_decodes", "num_chunks"), [(9, 0), (0, 5), (7, 4)])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_it_is_the_attention_of_the_reference(
    block_size: int, num_decodes: int, num_chunks: int, window: int | None
) -> None:
    batch = random_batch(block_size, block_size=block_size, num_decodes=num_decodes, num_chunks=num_chunks)
    cache = filled_cache(batch, dtype=torch.float32, block_size=block_size, num_kv_heads=2)
    query = torch.randn(batch.num_tokens, 4, 16, generator=torch.Generator().manual_seed(3))
    expected, attended = torch.empty_like(query), torch.empty_like(query)
    device_batch = DeviceBatch(batch, spec=cache.spec, device=CPU)
    how: dict[str, Any] = {"layer": 1, "scaling": 0.3, "window": window}
    reference_attention(query, expected, cache, batch, **how)
    attend_varlen(query, attended, cache, device_batch, **how)
    assert (attended - expected).abs().max() < 1e-5


def test_the_tables_of_a_pass_are_made_once() -> None:
    batch = random_batch(0, block_size=4, num_decodes=3, num_chunks=2)
    device_batch = DeviceBatch(batch, spec=SPEC, device=CPU)
    tables = device_batch.ragged_tables
    assert device_batch.ragged_tables is tables
    assert tables.query_starts.tolist() == batch.query_starts().tolist()
    assert tables.context_lens.tolist() == batch.context_lens.tolist()
    assert tables.block_tables.tolist() == batch.block_tables.tolist()


# Which devices it is used on


def on_hopper(monkeypatch: pytest.MonkeyPatch, *, capability: int = 9) -> list[str]:
    """A device of this capability whose tensors are on the CPU. Returns the kernels that torch is told to call."""
    activated: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    monkeypatch.setattr(attention_varlen, "activate_flash_attention_impl", activated.append)
    try_out = attention_varlen._try_out
    monkeypatch.setattr(attention_varlen, "_try_out", lambda spec, device, num_heads: try_out(spec, CPU, num_heads))
    return activated


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(("capability", "name"), [(9, "FA3"), (10, "FA4")])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 1), (4, 2), (3, 3)])
def test_a_kernel_that_agrees_is_used(
    monkeypatch: pytest.MonkeyPatch, capability: int, name: str, num_heads: int, num_kv_heads: int
) -> None:
    activated = on_hopper(monkeypatch, capability=capability)
    spec = KVCacheSpec(num_layers=1, num_kv_heads=num_kv_heads, head_dim=16, block_size=16, dtype=torch.bfloat16)
    assert serves_varlen(spec, device=CUDA, num_heads=num_heads, progress=pytest.fail)
    assert activated == [name]


def off_by_one(*args: Any, window_size: tuple[int, int], **settings: Any) -> torch.Tensor:
    left, right = window_size
    return plain_varlen_attn_out(*args, window_size=(left if left < 0 else left + 1, right), **settings)


def refusing(*args: Any, **settings: Any) -> torch.Tensor:
    raise RuntimeError("head_dim 16 is not served\nand a stack of C++")


@pytest.mark.parametrize(
    ("kernel", "said"),
    [(off_by_one, "the kernel that reads pages computes something else"), (refusing, "head_dim 16 is not served")],
)
def test_a_kernel_that_does_not_agree_or_refuses_is_not_used(
    monkeypatch: pytest.MonkeyPatch, kernel: Any, said: str
) -> None:
    on_hopper(monkeypatch)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn_out", kernel)
    told: list[str] = []
    assert not serves_varlen(SPEC, device=CUDA, num_heads=4, progress=told.append)
    assert told == [f"attending by torch's own operations, which are slower: {said}"]


def test_without_a_kernel_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert not serves_varlen(SPEC, device=CUDA, num_heads=4, progress=told.append)
    assert told[-1].endswith("no kernel reads pages on devices of compute capability 8.x")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert not serves_varlen(SPEC, device=CUDA, num_heads=4, progress=told.append)
    assert "flash_attn_interface" in told[-1]  # the package that has FlashAttention 3 is not installed here
    spec = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=16, block_size=4, dtype=torch.float32)
    assert not serves_varlen(spec, device=CUDA, num_heads=4, progress=told.append)
    assert told[-1].endswith("no kernel reads pages in float32")


def test_on_the_cpu_nobody_is_asked() -> None:
    assert not serves_varlen(SPEC, device=CPU, num_heads=4, progress=pytest.fail)
