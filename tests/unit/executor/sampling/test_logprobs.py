"""Log-probabilities: of raw logits, in float32, each row by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from executor_service.sampling.argmax import largest_of_rows, sum_of_rows
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.logprobs import LOGPROB_FLOOR, Logprobs, logprobs_of

VOCAB_SIZE = 4096


@pytest.fixture
def two_threads() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(num_threads)


def random_logits(num_rows: int, *, vocab_size: int = VOCAB_SIZE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def asked(*numbers: int | None) -> np.ndarray:
    return np.array([NO_LOGPROBS if number is None else number for number in numbers], dtype=np.int8)


def told(logits: torch.Tensor, token_ids: list[int], numbers: np.ndarray) -> Logprobs:
    logprobs = logprobs_of(logits, torch.tensor(token_ids), numbers)
    assert logprobs is not None
    return logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [7, 300, VOCAB_SIZE, 128 * 256])
def test_they_are_the_log_softmax_of_the_logits_in_float32(dtype: torch.dtype, vocab_size: int) -> None:
    logits = random_logits(20, vocab_size=vocab_size, dtype=dtype)
    expected = logits.float().log_softmax(dim=-1)
    token_ids = (torch.arange(20) % vocab_size).tolist()
    logprobs = told(logits, token_ids, asked(*[5] * 20))
    assert logprobs.of_tokens == pytest.approx(expected[range(20), token_ids].numpy(), abs=1e-5)
    num_top = min(5, vocab_size)
    best = expected.sort(dim=-1, descending=True, stable=True)
    assert logprobs.top_logprobs[:, :num_top] == pytest.approx(best.values[:, :num_top].numpy(), abs=1e-5)
    named = expected.gather(1, torch.from_numpy(logprobs.top_token_ids[:, :num_top])).numpy()
    assert named == pytest.approx(logprobs.top_logprobs[:, :num_top], abs=1e-5)


def test_only_the_rows_that_ask_are_looked_at() -> None:
    logits = random_logits(4)
    logprobs = told(logits, [1, 2, 3, 4], asked(None, 0, None, 20))
    expected = logits.log_softmax(dim=-1)
    assert logprobs.rows.tolist() == [1, 3]
    assert logprobs.of_tokens == pytest.approx(expected[[1, 3], [2, 4]].numpy(), abs=1e-5)
    assert logprobs.top_token_ids[1].tolist() == expected[3].topk(20).indices.tolist()
    assert logprobs_of(logits, torch.tensor([1, 2, 3, 4]), asked(None, None, None, None)) is None


def test_a_rows_do_not_depend_on_its_batch() -> None:
    logits = random_logits(40).round().to(torch.bfloat16)  # many equals
    numbers = asked(*[[None, 0, 1, 20][row % 4] for row in range(40)])
    token_ids = list(range(40))
    together = told(logits, token_ids, numbers)
    for place, row in enumerate(together.rows.tolist()):
        alone = told(logits[row : row + 1], [row], numbers[row : row + 1])
        assert alone.of_tokens[0] == together.of_tokens[place]
        assert alone.top_token_ids[0].tolist() == together.top_token_ids[place].tolist()
        assert alone.top_logprobs[0].tolist() == together.top_logprobs[place].tolist()


def test_case_40_what_is_impossible_has_a_number_too() -> None:
    logits = torch.full((1, 300), float("-inf"))
    logits[0, 7] = 1.0
    logprobs = told(logits, [8], asked(3))
    assert logprobs.of_tokens.tolist() == [LOGPROB_FLOOR]
    assert logprobs.top_token_ids[0, 0] == 7
    assert logprobs.top_logprobs[0, :3].tolist() == [0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]


def test_a_broken_row_is_not_a_number_and_leaves_the_others_alone() -> None:
    logits = random_logits(3)
    healthy = told(logits, [1, 2, 3], asked(2, 2, 2))
    logits[1, 5] = float("nan")
    logprobs = told(logits, [1, -1, 3], asked(2, 2, 2))
    assert np.isnan(logprobs.of_tokens).tolist() == [False, True, False]
    assert logprobs.of_tokens[[0, 2]].tolist() == healthy.of_tokens[[0, 2]].tolist()


def test_a_rows_sum_does_not_depend_on_how_many_rows_there_are(two_threads: None) -> None:
    """torch sums a long row alone on several threads: enough of them that it would show."""
    rows = random_logits(32, vocab_size=262_144).exp_()
    together = sum_of_rows(rows)
    assert torch.equal(together, torch.cat([sum_of_rows(rows[row : row + 1]) for row in range(32)]))
    assert torch.allclose(together, rows.sum(dim=-1, keepdim=True, dtype=torch.float64))


@pytest.mark.parametrize("num_candidates", [1, 20, 64, 300])
@pytest.mark.parametrize("vocab_size", [300, 1024, 128 * 300, 128 * 300 + 1])
def test_the_largest_logits_are_those_of_a_sort(num_candidates: int, vocab_size: int) -> None:
    logits = random_logits(5, vocab_size=vocab_size)
    values, ids = largest_of_rows(logits, num_candidates)
    expected = logits.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, :num_candidates])
    assert torch.equal(ids, expected.indices[:, :num_candidates])
