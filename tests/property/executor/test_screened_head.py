"""The law of the head in 8 bits: whatever states and weights are, ids and logits are those of the head without it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.depth import num_examples
from support.kernels import compiled_kernels

# Beside numbers of any size those that spoil sums, and those of which no norm is a number.
SIZES = st.sampled_from([1.0, 1.0, 1.0, 0.0, 1e-38, 1e-30, 1e-18, 1e-15, 1e-7, 1e7, 1e15, 1e19, 1e30, 3e38])
ODD = st.sampled_from([float("nan"), float("inf"), float("-inf"), 3e38, 1e-38, 300.0, -300.0, 0.0])


@st.composite
def rows(draw: st.DrawFn, count: int, dim: int) -> torch.Tensor:
    """[count, dim] bfloat16: rows of one size or of several, some alike, some of a single number, some odd numbers."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    numbers = torch.randn(count, dim, generator=generator) * draw(SIZES)
    some = st.lists(st.integers(0, count - 1), max_size=8, unique=True)
    numbers[draw(some)] *= draw(SIZES)
    if draw(st.booleans()):  # nearly alike
        nearness = draw(st.sampled_from([0.0, 2.0**-10, 2.0**-6]))
        numbers = numbers[:1] + (numbers - numbers[:1]) * nearness
    numbers[draw(some)] = numbers[0].clone()
    for row in draw(some):
        single = draw(st.integers(0, dim - 1))
        numbers[row] = torch.where(torch.arange(dim) == single, numbers[row], 0.0)
    numbers[:, draw(st.lists(st.integers(0, dim - 1), max_size=2))] *= draw(st.sampled_from([1.0, 100.0]))
    for row in draw(some) if draw(st.booleans()) else ():
        numbers[row, draw(st.integers(0, dim - 1))] = draw(ODD)
    return numbers.bfloat16()


@given(data=st.data())
@settings(max_examples=num_examples(200), deadline=None)
def test_it_changes_no_id_and_no_logit(data: st.DataObject) -> None:
    products = compiled_kernels(torch.bfloat16).products
    if products is None:
        pytest.skip("this processor has no AVX2")
    dim, num_entries = 32 * data.draw(st.integers(1, 24), "dim"), 32 * data.draw(st.integers(1, 40), "entries")
    states = data.draw(rows(data.draw(st.integers(1, 20), "tokens"), dim))
    weight = products.pack(data.draw(rows(num_entries, dim)))
    screen = products.screen(weight)
    if screen is None:
        pytest.skip("this processor has tiles, or AVX-512 without AVX512_VNNI")
    token_ids, maxima = products.largest_logits(states, weight)
    screened_ids, screened = products.largest_logits(states, weight, screen)
    event(f"{int(maxima.isnan().sum())} of {len(states)} are no numbers")
    is_number = ~maxima.isnan()
    assert torch.equal(screened.isnan(), ~is_number)
    assert torch.equal(screened[is_number], maxima[is_number])
    assert torch.equal(screened_ids[is_number], token_ids[is_number])
