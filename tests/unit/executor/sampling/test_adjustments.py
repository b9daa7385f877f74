"""What requests do to their logits: against loops over lists, against transformers, and each row by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LogitsProcessor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
)

from executor_service.sampling.adjustments import Adjuster, adjust
from executor_service.sampling.masks import mask, num_words_of
from executor_service.sampling.penalties import TokenCounts
from executor_service.sampling.sampler import NOT_SAMPLED, NOTHING_ALLOWED, SamplingBatch, sample
from support.adjusted import Asked, by_definition
from support.paging import sampling_batch

VOCAB_SIZE = 500  # not a multiple of the bits of a word


ASKED = {
    "nothing": Asked(),
    "repetition": Asked(repetition=1.3, output=[7, 7, 8]),
    "repetition below 1": Asked(repetition=0.5, output=[7, 7, 8]),
    "presence": Asked(presence=0.7, output=[7, 7, 8]),
    "frequency": Asked(frequency=0.3, output=[7, 7, 8, 7, 2]),
    "all three": Asked(repetition=1.2, presence=-0.5, frequency=0.25, output=[499, 499, 0, 3]),
    "bias": Asked(bias={0: 100.0, 499: -100.0, 250: 1.5}),
    "banned": Asked(banned=[0, 31, 32, 499]),
    "allowed": Asked(allowed=[0, 31, 32, 63, 64, 499]),
    "too early to end": Asked(end_tokens=[5, 6], min_new=3, output=[1, 2]),
    "late enough to end": Asked(end_tokens=[5, 6], min_new=3, output=[1, 2, 3]),
    "everything": Asked(
        repetition=1.1,
        presence=1.0,
        frequency=2.0,
        bias={7: 3.0, 9: -3.0},
        allowed=list(range(0, 500, 3)),
        banned=[9, 12],
        end_tokens=[15],
        min_new=10,
        output=[7, 9, 7],
    ),
}


def random_logits(num_rows: int, *, seed: int = 0, vocab_size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def masked_first(asked: Sequence[Asked]) -> list[Asked]:
    return sorted(asked, key=lambda one: not one.allowed)


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED.keys())
def test_logits_are_adjusted_by_the_definition(asked: Asked) -> None:
    logits = random_logits(1)
    expected = by_definition(logits[0].tolist(), asked)
    adjust(logits, [asked.adjuster()])
    assert logits[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_every_row_is_adjusted_by_its_own_request() -> None:
    asked = masked_first(list(ASKED.values()))
    logits = random_logits(len(asked))
    expected = [by_definition(row, one) for row, one in zip(logits.tolist(), asked, strict=True)]
    adjust(logits, [one.adjuster() for one in asked])
    for row, values in zip(logits.tolist(), expected, strict=True):
        assert row == pytest.approx(values, rel=1e-6)


TRANSFORMERS: dict[str, tuple[LogitsProcessor, Asked]] = {
    "repetition": (RepetitionPenaltyLogitsProcessor(1.7), Asked(repetition=1.7, output=[8, 8, 9])),
    "bias": (SequenceBiasLogitsProcessor([[[4], 2.5], [[2], -7.0]]), Asked(bias={4: 2.5, 2: -7.0})),
    "banned": (SuppressTokensLogitsProcessor([3, 77]), Asked(banned=[3, 77])),
    "least tokens": (
        MinNewTokensLengthLogitsProcessor(4, 3, [11, 12], device="cpu"),
        Asked(end_tokens=[11, 12], min_new=3, output=[6, 6]),
    ),
}


@pytest.mark.parametrize(("theirs", "asked"), TRANSFORMERS.values(), ids=TRANSFORMERS.keys())
def test_logits_are_adjusted_as_transformers_does(theirs: Any, asked: Asked) -> None:
    logits = random_logits(1)
    expected = theirs(torch.tensor([asked.prompt + asked.output]), logits.clone())
    adjust(logits, [asked.adjuster()])
    assert torch.allclose(logits, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("min_p", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("parameters", [{}, {"top_k": 100}, {"top_p": 0.9999}])
def test_min_p_leaves_what_transformers_leaves(min_p: float, parameters: dict[str, float]) -> None:
    num_draws = 1_000
    logits = random_logits(1, vocab_size=60)
    warped = MinPLogitsWarper(min_p)(None, TemperatureLogitsWarper(0.8)(None, logits))[0]
    batch = sampling_batch(num_draws, temperature=0.8, min_p=min_p, **parameters)
    batch = replace(batch, position=np.arange(num_draws))
    drawn = np.bincount(sample(logits.expand(num_draws, -1), batch).numpy(), minlength=60)
    expected = warped.softmax(dim=0).numpy() * num_draws
    assert not drawn[expected == 0].any()
    assert np.all(np.abs(drawn - expected) <= 5 * np.sqrt(expected) + 1)


def batch_of(adjusters: dict[int, Adjuster], num_rows: int) -> SamplingBatch:
    return sampling_batch(num_rows, adjusters=adjusters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_its_neighbours_adjustments(dtype: torch.dtype) -> None:
    """More rows than are adjusted at once, in any order, greedy and sampled."""
    num_rows = 40
    asked = list(ASKED.values())
    logits = random_logits(num_rows).to(dtype)
    batch = SamplingBatch(
        temperature=np.tile(np.array([0, 1, 0.7], dtype=np.float32), num_rows)[:num_rows],
        top_k=np.tile(np.array([0, 0, 9, 40], dtype=np.int32), num_rows)[:num_rows],
        top_p=np.tile(np.array([1, 0.8], dtype=np.float32), num_rows)[:num_rows],
        min_p=np.tile(np.array([0, 0, 0, 0.1, 0.3], dtype=np.float32), num_rows)[:num_rows],
        seed=np.arange(num_rows, dtype=np.uint64),
        position=np.arange(num_rows),
        num_logprobs=np.full(num_rows, -1, dtype=np.int8),
        adjusters={row: asked[row % len(asked)].adjuster() for row in range(num_rows) if row % 4},
    )

    def of(rows: list[int]) -> list[int]:
        adjusters = {place: batch.adjusters[row] for place, row in enumerate(rows) if row in batch.adjusters}
        return sample(logits[rows], replace(batch.only(np.array(rows)), adjusters=adjusters)).tolist()

    together = of(list(range(num_rows)))
    assert [of([row])[0] for row in range(num_rows)] == together
    assert of(list(range(num_rows))[::-1]) == together[::-1]
    plain = sample(logits, replace(batch, adjusters={})).tolist()
    untouched = [row for row in range(num_rows) if row not in batch.adjusters]
    assert [plain[row] for row in untouched] == [together[row] for row in untouched]
    assert plain != together


def test_the_logits_that_were_given_are_left_as_they_are() -> None:
    logits = random_logits(3)
    before = logits.clone()
    sample(logits, batch_of({0: ASKED["everything"].adjuster(), 2: ASKED["bias"].adjuster()}, 3))
    assert torch.equal(logits, before)


def test_a_row_of_which_its_rules_leave_nothing_is_told_apart_from_one_that_is_broken() -> None:
    logits = random_logits(4)
    logits[1, 3] = float("nan")
    logits[2, 3] = float("inf")
    nothing = {row: Asked(allowed=[3], banned=[3]).adjuster() for row in (0, 1, 2)}
    tokens = sample(logits, batch_of(nothing, 4)).tolist()
    assert tokens == [NOTHING_ALLOWED, NOT_SAMPLED, NOT_SAMPLED, int(logits[3].argmax())]


def test_a_broken_logit_is_seen_although_its_token_is_banned() -> None:
    logits = random_logits(1)
    logits[0, 9] = float("nan")
    assert sample(logits, batch_of({0: Asked(banned=[9]).adjuster()}, 1)).tolist() == [NOT_SAMPLED]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 300, 1024])
def test_a_mask_leaves_what_its_bits_say(vocab_size: int) -> None:
    drawn = np.random.default_rng(0).random((3, vocab_size)) < 0.5
    padded = np.zeros((3, num_words_of(vocab_size) * 32), dtype=np.uint8)
    padded[:, :vocab_size] = drawn
    logits = random_logits(3, vocab_size=vocab_size)
    expected = torch.where(torch.from_numpy(drawn), logits, float("-inf"))
    mask(logits, np.packbits(padded, axis=1, bitorder="little").view(np.int32))
    assert torch.equal(logits, expected)


def test_counts_are_those_of_the_tokens_however_many() -> None:
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 900, 700).astype(np.int32), rng.integers(0, 900, 3_000).tolist()
    counts = TokenCounts(prompt)
    for token_id in output:
        counts.push(token_id)
    counted = dict(zip(counts.token_ids.tolist(), counts.output_counts.tolist(), strict=True))
    assert len(counted) == len(counts.token_ids)
    assert counted == {token_id: output.count(token_id) for token_id in {*prompt.tolist(), *output}}
