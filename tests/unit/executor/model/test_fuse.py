"""Fused modules give what those of transformers give, and what they cannot stand for stays as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from executor_service.kernels.cpu import CpuKernels
from executor_service.model.fuse import fuse, multiplies_all
from executor_service.model.fused_attention import FusedAttention
from executor_service.model.fused_parts import FusedGatedFeedForward, FusedNorm, PackedLinear, PanelLinear
from support.kernels import compiled_kernels
from support.tiny_models import TINY_MODELS, causal_model, tiny_model

# Two layers' worth of roundings, on logits of about 10.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.5}


def model(name: str, dtype: torch.dtype) -> Any:
    loaded = tiny_model(name)
    return AutoModelForCausalLM.from_config(loaded.config, attn_implementation="eager").to(dtype).eval()


def copy_of(original: Any, dtype: torch.dtype) -> Any:
    twin = AutoModelForCausalLM.from_config(original.config, attn_implementation="eager").to(dtype).eval()
    twin.load_state_dict(original.state_dict())
    return twin


@pytest.fixture(params=TOLERANCES, ids=str)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return compiled_kernels(request.param)


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("num_tokens", [1, 300])
def test_a_fused_model_gives_the_logits_of_the_original(name: str, num_tokens: int, kernels: CpuKernels) -> None:
    original = model(name, kernels.dtype)
    fused = copy_of(original, kernels.dtype)
    fuse(fused, kernels)
    ids = torch.randint(0, 256, (1, num_tokens), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, got = (m(input_ids=ids, use_cache=False).logits.float() for m in (original, fused))
        again = original(input_ids=ids, use_cache=False).logits.float()
    assert (got - expected).abs().max() < TOLERANCES[kernels.dtype]
    assert torch.equal(again, expected), "fusing one model must not touch another"


@pytest.mark.parametrize(
    "name", ["tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3"]
)
def test_every_part_that_can_be_fused_is(name: str, kernels: CpuKernels) -> None:
    fused = model(name, kernels.dtype)
    fuse(fused, kernels)
    classes = {type(module) for module in fused.modules()}
    assert {FusedNorm, FusedGatedFeedForward} <= classes
    assert not any(cls.__name__.endswith("RMSNorm") and cls is not FusedNorm for cls in classes)
    if kernels.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        products = kernels.products
        assert (PanelLinear if products is not None else PackedLinear) in classes
        assert nn.Linear not in classes
    assert all("forward" in vars(layer.self_attn) for layer in fused.model.layers), "rotary embedding is not fused"


@pytest.mark.parametrize(
    ("name", "is_fused"),
    [
        *(
            (name, True)
            for name in ("tiny-llama", "tiny-mistral", "tiny-qwen2", "tiny-qwen3", "tiny-gemma2", "tiny-gemma3")
        ),
        *((name, False) for name in ("tiny-phi3", "tiny-gpt2", "tiny-gpt-oss")),
    ],
)
def test_attention_is_fused_where_it_is_known(name: str, is_fused: bool, kernels: CpuKernels) -> None:
    paged = causal_model(name, dtype=kernels.dtype)
    layers = paged.config.num_hidden_layers
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in paged.model.layers] if is_fused else []
    fuse(paged, kernels)
    fused = [module for module in paged.modules() if isinstance(module, FusedAttention)]
    assert len(fused) == (layers if is_fused else 0)
    if name == "tiny-gemma3":  # its layers differ, so one cannot stand for all
        assert [module.options.window for module in fused] == windows
        assert len(set(windows)) > 1


class OddRMSNorm(nn.Module):
    """Named like the others, computing something else."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.eps = 1e-6

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states * torch.rsqrt(states.abs().mean(-1, keepdim=True) + self.eps) * self.weight


class OddFeedForward(nn.Module):
    """Gates with the wrong half."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(16, 32, bias=False), nn.Linear(16, 32, bias=False)
        self.down_proj, self.act_fn = nn.Linear(32, 16, bias=False), nn.SiLU()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.up_proj(states)) * self.gate_proj(states))


class DemandingRMSNorm(OddRMSNorm):
    """Called in another way."""

    def forward(self, states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(states) * gate


@pytest.mark.parametrize("odd", [OddRMSNorm, DemandingRMSNorm, OddFeedForward])
def test_what_computes_something_else_stays_as_it_is(odd: type[nn.Module]) -> None:
    parent = nn.Sequential(odd().eval())
    fuse(parent, compiled_kernels(torch.float32))
    assert type(parent[0]) is odd


def test_a_normalisation_of_states_in_any_layout(kernels: CpuKernels) -> None:
    norm = FusedNorm(torch.linspace(0, 2, 8), 1e-6, rounds_first=False, kernels=kernels)
    states = torch.randn(2, 5, 3, 16, generator=torch.Generator().manual_seed(2)).to(kernels.dtype)[..., ::2]
    layouts = (states, states.contiguous(), states.transpose(1, 2).contiguous().transpose(1, 2), states.transpose(1, 2))
    expected = states.float() * torch.rsqrt(states.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    for layout in layouts:
        got = norm(layout).float()
        wanted = expected * torch.linspace(0, 2, 8)
        if layout.shape != wanted.shape:
            wanted = wanted.transpose(1, 2)
        assert (got - wanted).abs().max() < 0.05


@pytest.mark.parametrize("shape", [(8, 5), (8, 5, 1), (8, 3, 5)])
def test_a_normalisation_of_states_whose_rows_are_scattered(shape: tuple[int, ...], kernels: CpuKernels) -> None:
    states = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(kernels.dtype).transpose(0, -1)
    norm = FusedNorm(torch.ones(8), 1e-6, rounds_first=False, kernels=kernels)
    expected = states.float() * torch.rsqrt(states.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    assert (norm(states).float() - expected).abs().max() < 0.05


def test_what_is_not_finite_stays_visible(kernels: CpuKernels) -> None:
    feed_forward = model("tiny-llama", kernels.dtype)
    fuse(feed_forward, kernels)
    states = torch.zeros(3, 32, dtype=kernels.dtype)
    states[1, 5] = float("nan")
    with torch.inference_mode():
        got = feed_forward.model.layers[0].mlp(states)
    assert got[1].isnan().all()
    assert not got[[0, 2]].isnan().any()


@pytest.mark.parametrize(
    ("name", "vocab_size", "whether"),
    [
        ("tiny-llama", 320, True),
        ("tiny-qwen3", 320, True),
        ("tiny-llama", 300, False),  # rows of the output head that fill no panel
        ("tiny-gpt2", 320, False),  # Conv1D, which is no linear layer
        ("tiny-gpt-oss", 320, False),  # experts
    ],
)
def test_whether_all_products_are_ours_is_told_by_the_shapes(name: str, vocab_size: int, whether: bool) -> None:
    config = copy.deepcopy(tiny_model(name).config)
    config.vocab_size = vocab_size
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    assert multiplies_all(outline) is whether
