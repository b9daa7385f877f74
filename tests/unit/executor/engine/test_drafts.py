"""Speculation changes how many passes an answer takes, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from executor_service.engine.apply import PlanRefusedError, apply, check
from executor_service.engine.books import Books, Status
from executor_service.engine.drafts import NO_DRAFT, propose, verify
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.plan import EvictMode, Plan
from executor_service.engine.planning import Overlap
from executor_service.engine.request import EndCause, FinishReason, OutputOptions, Sampling
from executor_service.engine.snapshot import Snapshot, project, take
from executor_service.model.batch import RaggedBatch
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.adjustments import Adjustments, ConstraintKind
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.sampling.entries import LogitBias
from executor_service.sampling.penalties import Penalties
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch
from scheduler_service.core.policy import Policy
from support.books import books_with, decoding, waiting
from support.engine import GREEDY, EngineUnderTest, Spelling, engine_on_model, engine_on_tokens, limits_of, sequence_of
from support.kernels import compiled_kernels
from support.planners import RECOMPUTE, SWAP, EvictAtLength, LocalPlanner
from support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, tiny_model
from support.token_runner import Speech, TokenCache, TokenRunner, repeating_token, true_tokens

FIVE = NgramLookup(max_num_drafts=5, min_ngram=1, max_ngram=3)
ROOMY = limits_of(num_blocks=64, num_swap_blocks=16)
PROMPT = [1, 2, 3]


def round_and_round(context: np.ndarray) -> int:
    """What stood three places before: every draft is right, once there is one."""
    return int(context[-3])


def engine_that_speaks(speech: Speech, limits: Any = ROOMY, **parts: Any) -> EngineUnderTest:
    cache = TokenCache(
        num_blocks=limits.num_blocks, num_swap_blocks=limits.num_swap_blocks, block_size=limits.block_size
    )
    return engine_on_tokens(limits, runner=TokenRunner(cache, speech), kv=cache, **({"lookup": FIVE} | parts))


# What a pass has shown


def inputs_of(*drafts: list[int]) -> Any:
    """Of each request in turn: its drafts."""
    columns = [(index, token) for index, own in enumerate(drafts) for token in [NO_DRAFT, *own]]
    return SimpleNamespace(
        rows=np.arange(len(drafts)),
        sampled=np.array([index for index, _ in columns], dtype=np.int64),
        draft_token_ids=np.array([token for _, token in columns], dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("drafts", "sampled", "counts", "refused"),
    [
        ([[]], [4], [1], [0]),
        ([[4, 5]], [4, 5, 6], [1, 1, 1], [0]),
        ([[4, 5]], [4, 9, 6], [1, 1, 0], [1]),
        ([[4, 5]], [9, 5, 6], [1, 0, 0], [2]),  # the second follows a wrong one, whatever it is
        ([[4], [4], []], [4, 7, 8, 4, 5], [1, 1, 1, 0, 1], [0, 1, 0]),
        ([[4, 5]], [4, NOT_SAMPLED, 6], [1, 1, 0], [1]),
        ([], [], [], []),
    ],
)
def test_drafts_count_as_far_as_they_are_what_is_sampled(
    drafts: list[list[int]], sampled: list[int], counts: list[int], refused: list[int]
) -> None:
    verified = verify(inputs_of(*drafts), np.array(sampled, dtype=np.int64))
    assert verified.counts.tolist() == [bool(one) for one in counts]
    assert verified.num_refused.tolist() == refused


@given(st.data())
def test_verification_is_the_definition(data: st.DataObject) -> None:
    drafts = data.draw(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=4))
    sampled = [data.draw(st.integers(-1, 1)) for own in drafts for _ in range(1 + len(own))]
    counts, refused, place = [], [], 0
    for own in drafts:
        right = 0
        while right < len(own) and sampled[place + right] == own[right]:
            right += 1
        counts += [True] * (right + 1) + [False] * (len(own) - right)
        refused.append(len(own) - right)
        place += 1 + len(own)
    verified = verify(inputs_of(*drafts), np.array(sampled, dtype=np.int64))
    assert verified.counts.tolist() == counts
    assert verified.num_refused.tolist() == refused


# Whole answers


@pytest.mark.parametrize("overlap", Overlap)
def test_a_text_that_repeats_itself_takes_a_fraction_of_the_passes(overlap: Overlap) -> None:
    served = engine_that_speaks(round_and_round, overlap=overlap)
    request_id = served.submit([*PROMPT, *PROMPT], 40)
    served.run()
    assert served.tokens(request_id) == true_tokens(PROMPT, 40, round_and_round)
    assert served.finish(request_id).usage.num_output_tokens == 40
    counters = served.engine.counters
    assert counters.num_iterations <= 10
    assert counters.num_draft_tokens == counters.num_accepted_draft_tokens >= 30
    assert counters.num_output_tokens == 40
    assert sum(one.num_accepted_draft_tokens for one in served.heard.passes) == counters.num_accepted_draft_tokens
    assert not served.heard.refusals


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("policy", [SWAP, RECOMPUTE])
@pytest.mark.parametrize("num_drafts", [1, 5, 40])
def test_answers_are_the_same_in_a_cache_that_is_too_small(num_drafts: int, policy: Policy, overlap: Overlap) -> None:
    limits = limits_of(block_size=4, num_blocks=14, num_swap_blocks=12, max_num_batched_tokens=24)
    served = engine_that_speaks(
        repeating_token,
        limits,
        lookup=replace(FIVE, max_num_drafts=num_drafts),
        planner=LocalPlanner(policy),
        overlap=overlap,
    )
    prompts = [[number, *PROMPT, *PROMPT] for number in range(6)]
    ids = [served.submit(prompt, 20) for prompt in prompts]
    served.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert served.tokens(request_id) == true_tokens(prompt, 20, repeating_token)
    counters = served.engine.counters
    assert 0 < counters.num_accepted_draft_tokens < counters.num_draft_tokens
    assert counters.num_evicted_swap + counters.num_evicted_recompute > 0
    assert not served.heard.refusals


@pytest.mark.parametrize("mode", EvictMode)
@pytest.mark.parametrize("length", range(7, 30))
def test_an_eviction_at_any_length_does_not_change_answers(length: int, mode: EvictMode) -> None:
    eviction = EvictAtLength(request_id=1, length=length, mode=mode)
    limits = limits_of(block_size=4, num_blocks=64, num_swap_blocks=16)
    served = engine_that_speaks(repeating_token, limits, planner=LocalPlanner(RECOMPUTE, eviction), overlap=Overlap.OFF)
    prompts = [[number, *PROMPT, *PROMPT] for number in range(2)]
    ids = [served.submit(prompt, 24) for prompt in prompts]
    served.run()
    assert [served.tokens(i) for i in ids] == [true_tokens(prompt, 24, repeating_token) for prompt in prompts]


def test_an_answer_may_end_among_drafts_that_are_right() -> None:
    served = engine_that_speaks(round_and_round)
    by_token = served.submit([*PROMPT, 1, 7, 3, 1], 40, stop_token_ids=(7,))
    by_length = served.submit([*PROMPT, *PROMPT], 9)
    served.run()
    assert served.tokens(by_token) == [7]
    assert served.finish(by_token).finish_reason is FinishReason.STOP
    assert len(served.tokens(by_length)) == 9
    assert served.finish(by_length).finish_reason is FinishReason.LENGTH

    served = engine_that_speaks(round_and_round)
    by_string = served.submit([*PROMPT, *PROMPT], 40, stop=("cabca",), detokenizer=Spelling({1: "a", 2: "b", 3: "c"}))
    served.run()
    assert served.text(by_string) == "ab"
    assert served.finish(by_string).matched_stop == "cabca"
    assert served.is_empty


def test_the_text_of_refused_drafts_is_reused_by_nobody() -> None:
    served = engine_that_speaks(repeating_token, limits_of(block_size=2, num_blocks=64))
    prompts = [[number, *PROMPT, *PROMPT] for number in range(3)]
    for prompt in prompts * 2:
        request_id = served.submit(prompt, 30)
        served.run()
        assert served.tokens(request_id) == true_tokens(prompt, 30, repeating_token)
    for prompt in prompts:
        longer = prompt + true_tokens(prompt, 12, repeating_token)
        request_id = served.submit(longer, 8)
        served.run()
        assert served.tokens(request_id) == true_tokens(longer, 8, repeating_token)
        assert served.finish(request_id).usage.num_cached_tokens == len(longer) - len(longer) % 2 - 2 * (
            len(longer) % 2 == 0
        )
    assert served.engine.counters.num_accepted_draft_tokens < served.engine.counters.num_draft_tokens


class BrokenAt(TokenRunner):
    """Gives logits that are no numbers in the last row of the first pass that verifies drafts."""

    def __init__(self, cache: TokenCache, speech: Speech) -> None:
        super().__init__(cache, speech)
        self.done = False

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        result = super().execute(batch, sampling)
        if len(sampling) > 1 and not self.done:
            self.done = True
            result.next_token_ids[-1], result.non_finite[-1] = NOT_SAMPLED, True
        return result


def departs(context: np.ndarray) -> int:
    """Goes round, but for the ninth token of a text."""
    return 99 if len(context) == 8 else round_and_round(context)


@pytest.mark.parametrize(("speech", "fails"), [(round_and_round, True), (departs, False)])
def test_broken_logits_count_only_after_drafts_that_are_right(speech: Callable[[Any], int], fails: bool) -> None:
    cache = TokenCache(num_blocks=64, num_swap_blocks=16, block_size=16)
    served = engine_on_tokens(ROOMY, runner=BrokenAt(cache, speech), kv=cache, lookup=FIVE, overlap=Overlap.OFF)
    request_id = served.submit([*PROMPT, *PROMPT], 20)
    served.run()
    if fails:
        assert served.end(request_id).cause is EndCause.INVALID_LOGITS
        assert served.tokens(request_id) == true_tokens(PROMPT, 6, speech)
        assert len(served.books.prefixes.cache) == 0
    else:
        assert served.tokens(request_id) == true_tokens([*PROMPT, *PROMPT], 20, speech)
    assert served.is_empty


# With a model


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_model("tiny-qwen3")


SAMPLED = Sampling(temperature=0.7, top_k=0, top_p=1.0, seed=7)
REPETITIVE = [5, 6, 7, 8] * 6


def outcomes(loaded: LoadedModel, lookup: NgramLookup, **fields: Any) -> tuple[list[Any], EngineUnderTest]:
    """Tokens and log-probabilities of four requests that share their passes."""
    served = engine_on_model(loaded, ROOMY, lookup=lookup, planner=LocalPlanner(Policy(chunk_size_tokens=16)))
    ids = [served.submit([*REPETITIVE, number], 30, **fields) for number in range(4)]
    served.run()
    told = [[one.logprobs[0].logprob for one in served.events[i] if getattr(one, "logprobs", ())] for i in ids]
    return [(served.tokens(i), np.round(logprobs, 3).tolist()) for i, logprobs in zip(ids, told, strict=True)], served


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gemma3", "tiny-gemma2", "tiny-gpt-oss"])
def test_every_kind_of_attention_gives_the_same_tokens(name: str) -> None:
    model = tiny_model(name)
    expected, _ = outcomes(model, NO_LOOKUP)
    speculated, served = outcomes(model, FIVE)
    assert speculated == expected
    assert served.engine.counters.num_draft_tokens > 0


def test_the_compiled_kernels_give_the_same_tokens() -> None:
    model = tiny_model("tiny-llama", kernels=compiled_kernels(torch.float32))
    expected, _ = outcomes(model, NO_LOOKUP)
    speculated, served = outcomes(model, FIVE)
    assert speculated == expected
    assert served.engine.counters.num_accepted_draft_tokens > 0


REGULAR = Adjustments(
    bias=LogitBias(token_ids=np.arange(5, 9), values=np.full(4, 12.0, dtype=np.float32)),
    banned_token_ids=np.array([7], dtype=np.int64),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": SAMPLED},
        {"sampling": replace(SAMPLED, top_k=3)},
        {"sampling": replace(SAMPLED, top_p=0.5, min_p=0.01)},
        {"sampling": replace(GREEDY, adjustments=REGULAR)},
        {"sampling": replace(SAMPLED, adjustments=REGULAR)},
        {"output": OutputOptions(num_logprobs=2, num_prompt_logprobs=0)},
    ],
    ids=["sampled", "top-k", "top-p and min-p", "biased", "biased and sampled", "with log-probabilities"],
)
def test_whatever_a_request_asks_for_it_gets_the_same(loaded: LoadedModel, fields: dict[str, Any]) -> None:
    expected, _ = outcomes(loaded, NO_LOOKUP, **fields)
    speculated, served = outcomes(loaded, replace(FIVE, max_num_drafts=3), **fields)
    assert speculated == expected
    assert served.engine.counters.num_accepted_draft_tokens > 0


def test_who_depends_on_its_own_output_has_no_drafts(loaded: LoadedModel) -> None:
    compiler = ConstraintCompiler(loaded.tokenizer, vocab_size=VOCAB_SIZE, end_token_ids=[EOS_TOKEN_ID])
    constraint = compiler.compile(ConstraintKind.REGEX, "(ab)+")
    for adjustments in (
        Adjustments(penalties=Penalties(repetition=1.1)),
        Adjustments(penalties=Penalties(frequency=0.1)),
        Adjustments(constraint=constraint),
    ):
        fields = {"sampling": replace(GREEDY, adjustments=adjustments)}
        expected, _ = outcomes(loaded, NO_LOOKUP, **fields)
        speculated, served = outcomes(loaded, FIVE, **fields)
        assert speculated == expected
        assert served.engine.counters.num_draft_tokens == 0


def test_a_least_length_must_be_reached_first(loaded: LoadedModel) -> None:
    fields = {"min_new": 12, "stop_token_ids": (EOS_TOKEN_ID,)}
    expected, plain = outcomes(loaded, NO_LOOKUP, **fields)
    speculated, served = outcomes(loaded, FIVE, **fields)
    assert speculated == expected
    assert served.engine.counters.num_draft_tokens > 0
    first = next(i for i, one in enumerate(served.heard.passes) if one.num_draft_tokens)
    assert sum(one.num_decode_tokens for one in served.heard.passes[:first]) >= 4 * 11
    assert plain.engine.counters.num_iterations > served.engine.counters.num_iterations


# Plans


def books_with_drafts() -> Books:
    """Request 1 decodes and has five drafts; request 2 decodes and has none."""
    books = books_with(limits_of(num_blocks=8), decoding(1, stored=30), decoding(2, stored=30), waiting(3))
    books.max_num_drafts = 5
    row = int(books.rows_of([1])[0])
    books.sequence(row).draft(np.arange(5, dtype=np.int32))
    books["num_draft_tokens"][row] = 5
    return books


def plan_of(scheduled: dict[int, int], **lists: Any) -> Plan:
    return Plan(
        iteration=10,
        scheduled=np.array(list(scheduled), dtype=np.int64),
        num_tokens=np.array(list(scheduled.values()), dtype=np.int32),
        **lists,
    )


def test_a_plan_grants_drafts_and_those_that_are_there_run() -> None:
    books = books_with_drafts()
    checked = check(plan_of({1: 4, 2: 6}), books, ended=frozenset())
    assert checked.num_tokens.tolist() == [4, 1]
    apply(checked, books)
    books.check_integrity()
    assert books["num_blocks"][books.rows_of([1, 2])].tolist() == [3, 2]


@pytest.mark.parametrize(
    ("scheduled", "lists"),
    [({1: 7}, {}), ({3: 17}, {"admit": np.array([3])}), ({1: 0}, {})],
    ids=["more than there may ever be", "of one that waits", "nothing"],
)
def test_a_plan_that_grants_what_nobody_may_have_is_refused(scheduled: dict[int, int], lists: dict[str, Any]) -> None:
    with pytest.raises(PlanRefusedError, match="lacks"):
        check(plan_of(scheduled, **lists), books_with_drafts(), ended=frozenset())


def test_blocks_of_refused_drafts_are_free_again() -> None:
    books = books_with_drafts()
    rows, num_tokens = books.rows_of([1]), np.array([6], dtype=np.int32)
    num_free = books.block_pool.num_free
    books.grow(rows, num_tokens)
    assert books.block_pool.num_free == num_free - 1
    served = books.tenants.service.sum()
    books.advance(rows, num_tokens, np.array([4], dtype=np.int32))
    books.check_integrity()
    assert books["num_computed_tokens"][rows].tolist() == [32]
    assert books["num_blocks"][rows].tolist() == [2]
    assert books.block_pool.num_free == num_free
    assert books.tenants.service.sum() == served + 6, "the device computed them all"


def test_drafts_leave_with_the_device() -> None:
    books = books_with_drafts()
    row = int(books.rows_of([1])[0])
    books.evict_by_recompute(row)
    assert books["num_draft_tokens"][row] == 0
    books.check_integrity()


def column(snapshot: Snapshot, name: str) -> dict[int, int]:
    return dict(zip(snapshot.columns["id"].tolist(), snapshot.columns[name].tolist(), strict=True))


def test_a_state_foresees_the_most_that_verification_may_give() -> None:
    books = books_with_drafts()
    assert column(take(books, now_us=1, latency=None), "num_draft_tokens") == {1: 5, 2: 0, 3: 0}
    rows, num_tokens = books.rows_of([1, 2]), np.array([6, 1], dtype=np.int32)
    books.grow(rows, num_tokens)
    projected = project(books, rows, num_tokens, now_us=1, latency=None)
    assert column(projected, "num_output_tokens") == {1: 7, 2: 2, 3: 0}
    assert column(projected, "num_computed_tokens") == {1: 36, 2: 31, 3: 0}
    assert column(projected, "num_draft_tokens") == {1: 5, 2: 0, 3: 0}


def test_a_state_foresees_no_end_that_is_not_certain() -> None:
    books = books_with_drafts()
    rows, num_tokens = books.rows_of([1]), np.array([6], dtype=np.int32)
    books["max_output_tokens"][rows] = 7
    books.grow(rows, num_tokens)
    projected = project(books, rows, num_tokens, now_us=1, latency=None)
    assert column(projected, "num_output_tokens")[1] == 6
    assert column(projected, "num_computed_tokens")[1] == 35
    assert column(projected, "num_draft_tokens")[1] == 0


def test_the_last_token_of_an_answer_is_never_a_draft() -> None:
    books = Books(ROOMY, max_num_drafts=5)
    books.add(sequence_of(1, [1, 2, 1, 2], 4))
    row = int(books.rows_of([1])[0])
    books["status"][row] = Status.RUNNING
    for num_output, num_drafts in ((1, 2), (2, 1), (3, 0)):
        books.sequence(row).push(1 + (num_output + 1) % 2)
        books["num_output_tokens"][row] = num_output
        books["num_computed_tokens"][row] = 3 + num_output
        propose(books, books.rows_of([1]), FIVE)
        assert books["num_draft_tokens"][row] == num_drafts
        assert books.sequence(row).num_tokens == 4 + num_output
