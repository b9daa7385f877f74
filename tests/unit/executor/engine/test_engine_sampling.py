"""What requests ask of the sampler, through whole answers: right, whatever happens and whoever shares the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.engine.plan import EvictMode
from executor_service.engine.request import EndCause, FinishReason, OutputOptions, Sampling, TokenLogprobs, TokensEvent
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.batch import RaggedBatch
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ExecuteResult, ModelRunner
from executor_service.sampling.adjustments import Adjustments, ConstraintKind
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.sampling.logprobs import LOGPROB_FLOOR
from executor_service.sampling.sampler import SamplingBatch
from scheduler_service.core.policy import Policy
from support.adjusted import Asked, by_definition
from support.engine import GREEDY, EngineUnderTest, Spelling, engine_on_model, limits_of
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, tiny_model

PROMPT = np.random.default_rng(1).integers(0, 256, 20).tolist()
ROOMY = limits_of(num_blocks=64, num_swap_blocks=16)
# What befalls request 1, which runs beside others: nothing, or an eviction when it has so many tokens.
FATES: dict[str, Callable[[], list[EvictAtLength]]] = {
    "undisturbed": list,
    "swapped": lambda: [EvictAtLength(request_id=1, length=30, mode=EvictMode.SWAP)],
    "recomputed": lambda: [EvictAtLength(request_id=1, length=30, mode=EvictMode.RECOMPUTE)],
    "recomputed in its prompt": lambda: [EvictAtLength(request_id=1, length=20, mode=EvictMode.RECOMPUTE)],
    "recomputed twice": lambda: [
        EvictAtLength(request_id=1, length=length, mode=EvictMode.RECOMPUTE) for length in (20, 25)
    ],
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_model("tiny-qwen3")


@pytest.fixture(scope="module")
def compiler(loaded: LoadedModel) -> ConstraintCompiler:
    return ConstraintCompiler(loaded.tokenizer, vocab_size=VOCAB_SIZE, end_token_ids=[EOS_TOKEN_ID])


@pytest.fixture(params=FATES.values(), ids=FATES.keys())
def fate(request: pytest.FixtureRequest) -> list[EvictAtLength]:
    fates: list[EvictAtLength] = request.param()
    return fates


def true_logits(loaded: LoadedModel, tokens: list[int]) -> torch.Tensor:
    """[tokens, V] by transformers' own attention."""
    loaded.model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            logits: torch.Tensor = loaded.model(input_ids=torch.tensor([tokens])).logits[0]
            return logits
    finally:
        loaded.model.set_attn_implementation("metronome_paged")


def true_answer(loaded: LoadedModel, asked: Asked, new: int) -> list[int]:
    """Greedy, one whole forward pass and one loop over the vocabulary a token."""
    output: list[int] = []
    while len(output) < new and not (output and output[-1] in asked.end_tokens and len(output) > asked.min_new):
        logits = by_definition(
            true_logits(loaded, asked.prompt + output)[-1].tolist(), replace(asked, output=list(output))
        )
        output.append(int(np.argmax(logits)))
    return output


def served_with(
    loaded: LoadedModel, fate: list[EvictAtLength], new: int, *, neighbours: int = 3, **fields: Any
) -> EngineUnderTest:
    """Request 1 has been served, beside greedy ones that ask for nothing and prefill in chunks as it does."""
    served = engine_on_model(loaded, ROOMY, planner=LocalPlanner(replace(RECOMPUTE, chunk_size_tokens=9), *fate))
    served.submit(PROMPT, new, **fields)
    for number in range(neighbours):
        served.submit(PROMPT[number:], new)
    served.run()
    assert all(eviction.done for eviction in fate)
    return served


ASKED = {
    # Case 18.
    "presence, frequency and least length": Asked(
        prompt=PROMPT, presence=1.0, frequency=0.5, end_tokens=list(range(0, 256, 2)), min_new=30
    ),
    "repetition": Asked(prompt=PROMPT, repetition=1.8),
    "bias, allowed and banned": Asked(
        prompt=PROMPT, bias={5: 4.0, 6: 3.5}, allowed=list(range(150)), banned=[5], presence=2.0
    ),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_case_18_an_answer_is_that_of_the_definition_whatever_happens(
    loaded: LoadedModel, asked: Asked, fate: list[EvictAtLength]
) -> None:
    served = served_with(
        loaded,
        fate,
        40,
        sampling=replace(GREEDY, adjustments=asked.adjustments()),
        stop_token_ids=asked.end_tokens,
        min_new=asked.min_new,
    )
    assert served.tokens(1) == true_answer(loaded, asked, 40)
    usage = served.finish(1).usage
    assert (usage.num_prompt_tokens, usage.num_output_tokens) == (20, len(served.tokens(1)))
    assert usage.num_preemptions == len(fate)
    assert len(served.tokens(1)) > asked.min_new


def logprobs_of(served: EngineUnderTest, request_id: int) -> list[TokenLogprobs]:
    return [told for event in token_events(served, request_id) for told in event.logprobs]


def token_events(served: EngineUnderTest, request_id: int) -> list[TokensEvent]:
    return [event for event in served.events[request_id] if isinstance(event, TokensEvent)]


def test_log_probabilities_are_those_of_the_raw_logits(loaded: LoadedModel, fate: list[EvictAtLength]) -> None:
    sampling = Sampling(temperature=0.7, top_k=30, top_p=0.9, seed=3, adjustments=ASKED["repetition"].adjustments())
    served = served_with(loaded, fate, 16, sampling=sampling, output=OutputOptions(num_logprobs=5))
    tokens = served.tokens(1)
    expected = true_logits(loaded, PROMPT + tokens).log_softmax(dim=-1)[len(PROMPT) - 1 : -1]
    told = logprobs_of(served, 1)
    assert [one.logprob for one in told] == pytest.approx(expected[range(16), tokens].tolist(), abs=1e-4)
    for one, row in zip(told, expected, strict=True):
        assert list(one.top_token_ids) == row.topk(5).indices.tolist()
        assert list(one.top_logprobs) == pytest.approx(row.topk(5).values.tolist(), abs=1e-4)
    assert logprobs_of(served, 2) == []


@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_case_41_prompt_log_probabilities_are_the_same_in_chunks_and_after_evictions(
    loaded: LoadedModel, fate: list[EvictAtLength], chunk_size: int
) -> None:
    planner = LocalPlanner(Policy(chunk_size_tokens=chunk_size), *fate)
    served = engine_on_model(loaded, ROOMY, planner=planner)
    output = OutputOptions(num_logprobs=0, num_prompt_logprobs=3)
    served.submit(PROMPT, 16, output=output)
    served.submit(PROMPT[::-1], 16)
    served.submit(PROMPT[::-1], 16, output=output)
    served.submit(PROMPT[:1], 16, output=output)
    served.run()
    served.submit(PROMPT, 16, output=output)  # of which most is in the prefix cache by now
    served.run()
    assert served.finish(5).usage.num_cached_tokens == 0
    for request_id, prompt in ((1, PROMPT), (3, PROMPT[::-1]), (4, PROMPT[:1]), (5, PROMPT)):
        first, *others = token_events(served, request_id)
        assert not any(event.prompt_logprobs for event in others)
        expected = true_logits(loaded, prompt).log_softmax(dim=-1)
        told = first.prompt_logprobs
        true = expected[range(len(prompt) - 1), prompt[1:]].tolist()
        assert [one.logprob for one in told] == pytest.approx(true, abs=1e-4)
        for one, row in zip(told, expected, strict=False):
            assert list(one.top_token_ids) == row.topk(3).indices.tolist()
        assert all(one.top_token_ids == () for one in logprobs_of(served, request_id))
        assert len(logprobs_of(served, request_id)) == 16
    assert not any(event.prompt_logprobs or event.logprobs for event in token_events(served, 2))
    assert served.tokens(1) == served_with(loaded, [], 16).tokens(1)


def test_a_prompt_is_looked_at_where_somebody_asks_and_once(loaded: LoadedModel) -> None:
    """Rows of logits cost memory and time: an eviction must not pay for those that are known."""
    asked_rows: list[int] = []

    class CountingRunner(ModelRunner):
        def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
            asked_rows.append(len(batch.logits_rows) - len(sampling))
            return super().execute(batch, sampling)

    spec = KVCacheSpec.from_config(loaded.config, block_size=ROOMY.block_size, dtype=loaded.dtype)
    cache = KVCache(spec, num_blocks=ROOMY.num_blocks, num_swap_blocks=ROOMY.num_swap_blocks)
    planner = LocalPlanner(replace(RECOMPUTE, chunk_size_tokens=9), *FATES["recomputed twice"]())
    served = engine_on_model(loaded, ROOMY, planner=planner, runner=CountingRunner(loaded, cache), kv=cache)
    served.submit(PROMPT, 16, output=OutputOptions(num_prompt_logprobs=0))
    served.submit(PROMPT, 16)
    served.run()
    assert sum(asked_rows) == len(PROMPT) - 1


def test_case_40_nearly_zero_zero_one_token_and_a_broken_row(loaded: LoadedModel) -> None:
    """D's logits have no numbers: its embedding is broken for this run, and nobody else has its token."""
    prompt, broken_token = PROMPT[:8], 299
    embedding = loaded.model.get_input_embeddings().weight
    kept = embedding[broken_token].clone()
    served = engine_on_model(loaded, ROOMY)
    served.submit(prompt, 8, sampling=Sampling(temperature=1e-8, top_k=0, top_p=1.0, seed=1))
    served.submit(prompt, 8)
    one_token = Sampling(temperature=1.0, top_k=1, top_p=1.0, seed=3)
    served.submit(prompt, 8, sampling=one_token, output=OutputOptions(num_logprobs=5))
    served.submit([*prompt[:-1], broken_token], 8)
    served.submit([*prompt[:-2], broken_token, 1], 8, output=OutputOptions(num_prompt_logprobs=0))
    try:
        with torch.inference_mode():
            embedding[broken_token] = float("nan")
        served.run()
    finally:
        with torch.inference_mode():
            embedding[broken_token] = kept
    assert served.tokens(1) == served.tokens(2) == served.tokens(3)
    told = logprobs_of(served, 3)
    assert len(told) == 8
    for one in told:
        assert all(LOGPROB_FLOOR <= value <= 0 for value in (one.logprob, *one.top_logprobs))
        assert one.logprob == one.top_logprobs[0]
    for request_id in (4, 5):
        assert served.end(request_id).cause is EndCause.INVALID_LOGITS
    assert served.is_empty


def test_a_request_whose_rules_leave_no_token_ends_alone(loaded: LoadedModel, compiler: ConstraintCompiler) -> None:
    constraint = compiler.compile(ConstraintKind.REGEX, "ab")
    letter_b = loaded.tokenizer.encode("b", add_special_tokens=False)
    asked = Adjustments(constraint=constraint, banned_token_ids=np.array(letter_b))
    served = engine_on_model(loaded, ROOMY)
    served.submit(PROMPT, 16, sampling=replace(GREEDY, adjustments=asked))
    served.submit(PROMPT, 16)
    served.run()
    ending = served.end(1)
    assert ending.cause is EndCause.NO_TOKEN_ALLOWED
    assert "leave no token to choose" in ending.detail
    assert len(served.tokens(1)) == 1
    assert served.tokens(2) == served_with(loaded, [], 16).tokens(1)
    assert served.is_empty


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_constrained_answer_is_the_same_whatever_happens_and_ends_with_its_form(
    loaded: LoadedModel, compiler: ConstraintCompiler, fate: list[EvictAtLength], temperature: float
) -> None:
    constraint = compiler.compile(ConstraintKind.REGEX, "[a-z]{14}(-[0-9]{2}){2}")
    sampling = replace(GREEDY, temperature=temperature, seed=5, adjustments=Adjustments(constraint=constraint))
    spelled = Spelling({token: loaded.tokenizer.decode([token]) for token in range(256)})
    fields: dict[str, Any] = {"sampling": sampling, "stop_token_ids": [EOS_TOKEN_ID], "detokenizer": spelled}
    served = served_with(loaded, fate, 40, **fields)
    assert served.finish(1).finish_reason is FinishReason.STOP
    assert len(served.tokens(1)) == 20
    text = served.text(1)
    assert text[:14].isalpha()
    assert text[14::3] == "--"
    assert served.tokens(1) == served_with(loaded, [], 40, neighbours=0, **fields).tokens(1)


def test_a_complete_form_ends_an_answer_before_its_least_length(
    loaded: LoadedModel, compiler: ConstraintCompiler
) -> None:
    constraint = compiler.compile(ConstraintKind.REGEX, "[a-z]{4}")
    sampling = replace(GREEDY, adjustments=Adjustments(constraint=constraint))
    served = served_with(loaded, [], 20, sampling=sampling, min_new=10, stop_token_ids=[EOS_TOKEN_ID])
    assert served.finish(1).finish_reason is FinishReason.STOP
    assert len(served.tokens(1)) == 4


def test_an_answer_may_be_cut_short_of_its_form(loaded: LoadedModel, compiler: ConstraintCompiler) -> None:
    constraint = compiler.compile(ConstraintKind.REGEX, "[a-z]{14}")
    sampling = replace(GREEDY, adjustments=Adjustments(constraint=constraint))
    served = served_with(loaded, [], 5, sampling=sampling)
    assert served.finish(1).finish_reason is FinishReason.LENGTH
    assert len(served.tokens(1)) == 5


@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE], ids=["swap", "recompute"])
def test_case_19_answers_to_one_prompt_are_evicted_and_are_what_they_would_be_alone(
    loaded: LoadedModel, policy: Policy
) -> None:
    """Three answers of 30 tokens to a prompt of 40 need 15 blocks of the 12, and have one time of arrival."""
    prompt = PROMPT * 2
    seeded = [Sampling(temperature=0.9, top_k=0, top_p=1.0, seed=seed) for seed in (7, 8, 9)]
    crowded = engine_on_model(loaded, limits_of(num_blocks=12, num_swap_blocks=8), planner=LocalPlanner(policy))
    ids = [crowded.submit(prompt, 30, sampling=sampling, arrival_time_us=1) for sampling in seeded]
    crowded.run()
    assert sum(crowded.finish(id).usage.num_preemptions for id in ids) > 0
    for id, sampling in zip(ids, seeded, strict=True):
        alone = engine_on_model(loaded, ROOMY)
        alone.submit(prompt, 30, sampling=sampling)
        alone.run()
        assert crowded.tokens(id) == alone.tokens(1)


def test_min_p_of_one_is_greedy_at_any_temperature(loaded: LoadedModel) -> None:
    sampling = Sampling(temperature=50.0, top_k=0, top_p=1.0, seed=3, min_p=1.0)
    served = served_with(loaded, [], 12, sampling=sampling)
    assert served.tokens(1) == served.tokens(2)
