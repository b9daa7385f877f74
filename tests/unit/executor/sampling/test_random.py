"""Counter-based draws: functions of seed and position, uniform and unrelated."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from executor_service.sampling.random import uniforms

SEEDS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**31)


def draws(seeds: list[int], positions: list[int]) -> list[float]:
    return uniforms(np.array(seeds, dtype=np.uint64), np.array(positions, dtype=np.int64)).tolist()


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1))
def test_a_draw_depends_on_nothing_but_its_own_seed_and_position(pairs: list[tuple[int, int]]) -> None:
    together = draws([seed for seed, _ in pairs], [position for _, position in pairs])
    assert together == [draws([seed], [position])[0] for seed, position in pairs]
    assert all(0 < draw < 1 for draw in together)


def test_draws_are_uniform_along_positions_and_along_seeds() -> None:
    counts = range(20_000)
    for sample in (draws([3] * 20_000, list(counts)), draws(list(counts), [3] * 20_000)):
        histogram, _ = np.histogram(sample, bins=20, range=(0, 1))
        # 1,000 expected in each bin, standard deviation 31.
        assert np.all(np.abs(histogram - 1000) < 5 * 31)


def test_neighbouring_seeds_do_not_give_shifted_copies() -> None:
    sequences = [draws([seed] * 100, list(range(100))) for seed in range(50)]
    assert len({draw for sequence in sequences for draw in sequence}) == 50 * 100
