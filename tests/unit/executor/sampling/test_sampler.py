"""The sampler: greedy, temperature, top-k and top-p, each row by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from executor_service.sampling.argmax import argmax_rows
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch, sample
from support.paging import sampling_batch

VOCAB_SIZE = 3_000  # three chunks, the last of them partial


def random_logits(num_rows: int, *, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3


def at_positions(batch: SamplingBatch, positions: np.ndarray) -> SamplingBatch:
    return replace(batch, position=positions)


def rows_of(batch: SamplingBatch, rows: list[int]) -> SamplingBatch:
    adjusters = {place: batch.adjusters[row] for place, row in enumerate(rows) if row in batch.adjusters}
    return replace(batch.only(np.array(rows)), adjusters=adjusters)


def mixed_batch() -> SamplingBatch:
    """Every kind of row: greedy, plain, top-k of several sizes, top-p, both, and each with min-p."""
    top_k = [0, 0, 5, 64, 100, 0, 0, 40, 2_000, 9_999, 1]
    return SamplingBatch(
        temperature=np.array([0, 1, 0.8, 1.2, 1, 0.9, 1, 0.7, 1, 1, 2], dtype=np.float32),
        top_k=np.array(top_k, dtype=np.int32),
        top_p=np.array([1, 1, 1, 1, 0.5, 0.9, 0.999999, 0.6, 1, 1, 1], dtype=np.float32),
        min_p=np.array([0, 0, 0, 0.2, 0, 0.01, 0, 0, 0.01, 0.5, 0], dtype=np.float32),
        seed=np.arange(len(top_k), dtype=np.uint64),
        position=np.arange(len(top_k)),
        num_logprobs=np.full(len(top_k), NO_LOGPROBS, dtype=np.int8),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [1, 300, 1024, 5000])
def test_argmax_is_the_first_of_the_largest(dtype: torch.dtype, vocab_size: int) -> None:
    logits = random_logits(20, vocab_size=vocab_size).round().to(dtype)  # rounded, so that there are ties
    tokens, maxima = argmax_rows(logits)
    assert tokens.tolist() == logits.float().numpy().argmax(axis=1).tolist()
    assert torch.equal(maxima, logits.amax(dim=1))


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 9e-6])
def test_a_temperature_of_nearly_zero_is_greedy(temperature: float) -> None:
    logits = random_logits(8)
    assert torch.equal(sample(logits, sampling_batch(8, temperature=temperature)), logits.argmax(dim=1))


@pytest.mark.parametrize("parameters", [{"top_k": 1}, {"top_p": 1e-7}])
def test_keeping_one_token_is_greedy_at_any_temperature(parameters: dict[str, float]) -> None:
    logits = random_logits(8)
    assert torch.equal(sample(logits, sampling_batch(8, temperature=5.0, **parameters)), logits.argmax(dim=1))


def test_a_row_does_not_depend_on_its_batch() -> None:
    batch = mixed_batch()
    for dtype in (torch.float32, torch.bfloat16):
        logits = random_logits(len(batch)).to(dtype)
        together = sample(logits, batch).tolist()
        alone = [sample(logits[row : row + 1], rows_of(batch, [row])).item() for row in range(len(batch))]
        order = list(reversed(range(len(batch))))
        assert together == alone
        assert sample(logits[order], rows_of(batch, order)).tolist() == together[::-1]


def expected_probabilities(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """By the definition, in float64 over a full sort."""
    probabilities = np.exp((logits.double().numpy() - float(logits.max())) / temperature)
    order = np.argsort(-probabilities, kind="stable")
    if top_k:
        probabilities[order[top_k:]] = 0
    probabilities /= probabilities.sum()
    before = np.cumsum(probabilities[order]) - probabilities[order]
    probabilities[order[before >= top_p]] = 0
    return probabilities / probabilities.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.0, 7, 1.0), (1.3, 0, 0.8), (1.0, 20, 0.7), (1.0, 0, 0.02)],
)
def test_tokens_come_with_their_probabilities(temperature: float, top_k: int, top_p: float) -> None:
    num_draws = 20_000
    logits = random_logits(1, vocab_size=50)
    batch = sampling_batch(num_draws, temperature=temperature, top_k=top_k, top_p=top_p, seed=11)
    batch = at_positions(batch, np.arange(num_draws))
    tokens = sample(logits.expand(num_draws, -1).contiguous(), batch).numpy()
    expected = expected_probabilities(logits[0], temperature, top_k, top_p)
    counts = np.bincount(tokens, minlength=50)
    assert not counts[expected == 0].any()
    deviation = np.sqrt(num_draws * expected * (1 - expected))
    assert np.all(np.abs(counts - num_draws * expected) <= 5 * deviation + 1)


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.9999])
def test_top_p_over_few_and_over_many_candidates_is_the_definition(
    top_p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows = 40
    logits = random_logits(num_rows)
    batch = at_positions(sampling_batch(num_rows, temperature=1.0, top_p=top_p), np.arange(num_rows))
    bounded = sample(logits, batch)
    monkeypatch.setattr("executor_service.sampling.sampler.TOP_P_CANDIDATES", 4)  # all fall back to the full sort
    assert torch.equal(sample(logits, batch), bounded)
    for row, token in enumerate(bounded.tolist()):
        assert expected_probabilities(logits[row], 1.0, 0, top_p)[token] > 0


@pytest.mark.parametrize("parameters", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_flagged_and_its_neighbours_are_untouched(
    parameters: dict[str, float], fault: float
) -> None:
    logits = random_logits(4)
    batch = sampling_batch(4, **parameters)
    healthy = sample(logits, batch)
    logits[2, 100] = fault
    sampled = sample(logits, batch)
    assert sampled[2] == NOT_SAMPLED
    assert torch.equal(sampled[[0, 1, 3]], healthy[[0, 1, 3]])


@pytest.mark.parametrize("parameters", [{}, {"top_k": 5}, {"top_p": 0.9}])
def test_tokens_that_were_ruled_out_are_never_sampled(parameters: dict[str, float]) -> None:
    num_rows = 200
    logits = torch.full((num_rows, VOCAB_SIZE), float("-inf"))
    logits[:, [2, 1500, VOCAB_SIZE - 1]] = 0.0
    batch = at_positions(sampling_batch(num_rows, temperature=1.0, **parameters), np.arange(num_rows))
    assert set(sample(logits, batch).tolist()) == {2, 1500, VOCAB_SIZE - 1}
    assert (sample(torch.full_like(logits, float("-inf")), batch) == NOT_SAMPLED).all()


def test_no_rows_give_no_tokens() -> None:
    assert sample(random_logits(0), sampling_batch(0)).shape == (0,)
