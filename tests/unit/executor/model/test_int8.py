"""Weights in 8 bits: near to what they were, the same whatever way a product takes, and less memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from executor_service.kernels.choice import KernelChoice
from executor_service.model.errors import UnsupportedModelError
from executor_service.model.fuse import fuse
from executor_service.model.int8 import MAX_ROWS_BY_INT8, Int8Embedding, Int8Linear, Int8Weight, Workspace, quantize
from executor_service.model.loaded import LoadedModel
from executor_service.model.loader import load_model
from executor_service.model.parallel_layers import RowParallel
from executor_service.model.quantization import Quantization
from executor_service.model.shard import Shard, cut
from support.engine import engine_on_model, limits_of
from support.kernels import compiled_kernels
from support.tiny_models import TINY_MODELS, VOCAB_SIZE, tiny_model

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
QUANTIZED = tuple(name for name in TINY_MODELS if name != "tiny-gpt-oss")
PROMPT = [(7 * i) % 250 for i in range(40)]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def exact(weight: Int8Weight) -> torch.Tensor:
    """[N, K] what it stands for."""
    return weight.values.double() * weight.scales.double().unsqueeze(1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_off_by_half_a_step_at_most(dtype: torch.dtype) -> None:
    matrix = random(50, 24, dtype=dtype)
    matrix[7] = 0
    matrix[8] *= 1000
    matrix[9] /= 1000
    weight = Int8Weight(matrix, Workspace())
    step = weight.scales.double().unsqueeze(1)
    # The factor itself is rounded to the dtype, so the largest weights may lie beyond 127 steps by as much.
    slack = matrix.double().abs().amax(dim=1, keepdim=True) * torch.finfo(dtype).eps
    assert bool(((exact(weight) - matrix.double()).abs() <= 0.5 * step + slack).all())
    assert not exact(weight)[7].any()
    assert weight.values.abs().amax(dim=1).tolist() == [127 if row != 7 else 0 for row in range(50)]


# Below, at and above what is multiplied by int8 itself; outputs and inputs that are no multiples of anything.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [0, 1, MAX_ROWS_BY_INT8, MAX_ROWS_BY_INT8 + 1, 33])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 32), (300, 64), (37, 8), (41, 100), (24000, 96)])
def test_a_product_is_that_of_the_weights(num_outputs: int, num_inputs: int, num_rows: int, dtype: torch.dtype) -> None:
    weight = Int8Weight(random(num_outputs, num_inputs, dtype=dtype), Workspace())
    states = random(num_rows, num_inputs, dtype=dtype)
    product = weight.multiply(states)
    expected = states.double() @ exact(weight).t()
    assert (product.shape, product.dtype) == (expected.shape, dtype)
    tolerance = 4 * torch.finfo(dtype).eps * num_inputs**0.5
    torch.testing.assert_close(product.double(), expected, rtol=tolerance, atol=tolerance * 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_rows", [1, 33])
def test_a_product_on_a_gpu_is_that_of_the_weights(num_rows: int) -> None:
    weight = Int8Weight(random(300, 96, dtype=torch.bfloat16), Workspace())
    states = random(num_rows, 96, dtype=torch.bfloat16)
    expected = states.double() @ exact(weight).t()
    product = weight.to("cuda").multiply(states.to("cuda")).cpu()
    torch.testing.assert_close(product.double(), expected, rtol=0.1, atol=0.3)


def test_states_may_lie_scattered_and_have_a_bias_added() -> None:
    layer = torch.nn.Linear(32, 5)
    quantized = Int8Linear(Int8Weight(layer.weight.detach(), Workspace()), layer.bias)
    states = random(2, 3, 64)[..., ::2]
    expected = states.double() @ exact(quantized.weight).t() + layer.bias.double()
    with torch.inference_mode():
        torch.testing.assert_close(quantized(states).double(), expected, rtol=1e-5, atol=1e-5)


def logits(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            result: torch.Tensor = loaded.model(input_ids=torch.tensor([token_ids])).logits[0]
            return result
    finally:
        loaded.model.set_attn_implementation("metronome_paged")


def num_bytes(model: torch.nn.Module) -> int:
    tensors = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@pytest.mark.parametrize("name", QUANTIZED)
def test_logits_stay_near_on_every_architecture(name: str) -> None:
    plain, quantized = tiny_model(name), tiny_model(name)
    before = num_bytes(quantized.model)
    quantize(name, quantized.model)
    expected, got = logits(plain, PROMPT), logits(quantized, PROMPT)
    assert float((got - expected).norm() / expected.norm()) < 0.08
    assert float((got - expected).norm()) > 0, "nothing was quantized"
    # The learned positions of GPT-2 stay, and are much of a tiny model.
    assert num_bytes(quantized.model) < (0.6 if name == "tiny-gpt2" else 0.3) * before
    assert quantized.model.get_input_embeddings().num_embeddings == VOCAB_SIZE


def test_weights_that_are_not_in_linear_layers_are_no_reason_to_pretend() -> None:
    loaded = tiny_model("tiny-gpt-oss")
    with pytest.raises(UnsupportedModelError, match="outside linear layers"):
        quantize(loaded.name, loaded.model)


def test_a_table_that_is_also_the_output_head_is_kept_once() -> None:
    loaded = tiny_model("tiny-gemma3")
    assert loaded.model.lm_head.weight is loaded.model.get_input_embeddings().weight
    quantize(loaded.name, loaded.model)
    embedding = loaded.model.get_input_embeddings()
    assert isinstance(embedding, Int8Embedding)
    assert loaded.model.lm_head.weight is embedding.weight


def test_each_rank_quantizes_its_part_of_the_model() -> None:
    for rank in range(2):
        loaded = tiny_model("tiny-llama")
        cut(loaded.name, loaded.model, Shard(rank=rank, size=2))
        quantize(loaded.name, loaded.model)
        assert not any(type(module) is torch.nn.Linear for module in loaded.model.modules())
        assert any(isinstance(module, RowParallel) for module in loaded.model.modules())
        assert num_bytes(loaded.model) < 0.3 * num_bytes(tiny_model("tiny-llama").model)


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_engine_gives_the_tokens_of_the_model(is_fused: bool) -> None:
    plain = tiny_model("tiny-gemma3")
    quantize(plain.name, plain.model)
    loaded = plain
    if is_fused:
        loaded = tiny_model("tiny-gemma3")
        fuse(loaded.model, compiled_kernels(torch.float32), packs_weights=False)
        quantize(loaded.name, loaded.model)
    served = engine_on_model(loaded, limits_of(num_blocks=64))
    ids = [served.submit(PROMPT[: 5 + number], 10) for number in range(6)]
    served.run()
    for number, request_id in enumerate(ids):
        tokens = list(PROMPT[: 5 + number])
        while len(tokens) < 15 + number:
            tokens.append(int(logits(plain, tokens)[-1].argmax()))
        assert served.tokens(request_id) == tokens[5 + number :]


@pytest.mark.parametrize("kernels", [KernelChoice.TORCH, KernelChoice.AUTO])
def test_a_model_is_quantized_as_it_is_loaded(tmp_path: Path, kernels: KernelChoice) -> None:
    saved = tiny_model("tiny-llama")
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    lines: list[str] = []
    loaded = load_model(
        str(tmp_path),
        dtype="bfloat16",
        progress=lines.append,
        kernels=kernels,
        quantization=Quantization.INT8,
    )
    assert lines[-1] == f"quantizing {tmp_path.name} to int8"
    kinds = {type(module).__name__ for module in loaded.model.modules()}
    assert {"Int8Linear", "Int8Embedding"} <= kinds
    assert not {"Linear", "PackedLinear"} & kinds
    assert loaded.num_parameters == saved.num_parameters
