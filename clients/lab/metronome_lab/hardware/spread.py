"""How far passes lie from what they cost: the ratio of what each took to what its costs say.

                    density of the ratio
                 .:|:.
               .:::|::::.                      a pass may be disturbed and never is early, so the upper tail is the
      ________::::::|:::::::::......_______    longer one; it has the p99 of the time between tokens in it
             0.8   1.0   1.2      1.6

Quantiles rather than a distribution with a name: the tail is what else a machine does, for which there is no formula.
Beyond the outermost the nearest counts, so that no single pass that was stopped for a second makes others so.

Each pass is drawn by itself. Measured neighbours are alike, but what makes them so is no noise: a machine that is slow
for a minute, which no profile foresees, and batches that hold the same and are misjudged alike.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Of the passes, which lie below each of the quantiles.
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
# Fewer passes say nothing of one in a hundred.
MIN_PASSES = 100
_DRAWN_AT_ONCE = 256


def ratio_quantiles(ratios: NDArray[np.float64]) -> tuple[float, ...]:
    """[n] ratios of passes. Returns them at `SHARES`, with a mean of one; none if passes are too few to tell."""
    if len(ratios) < MIN_PASSES:
        return ()
    quantiles = np.quantile(ratios, SHARES)
    return tuple((quantiles / _mean(quantiles)).tolist())


def drawn_ratios(quantiles: tuple[float, ...], *, seed: tuple[int, ...]) -> Iterator[float]:
    """One ratio for each pass, without end; the same from the same seed, numbers >= 0.

    `quantiles`: at `SHARES`, > 0 and ascending. The ratios have a mean of one whatever those have: passes together take
    what they cost.
    """
    draw, values = np.random.default_rng(seed), np.array(quantiles) / _mean(np.array(quantiles))
    while True:
        yield from np.interp(draw.random(_DRAWN_AT_ONCE), SHARES, values).tolist()


def _mean(quantiles: NDArray[np.float64]) -> float:
    """Of what is drawn between them."""
    shares = np.array([0.0, *SHARES, 1.0])
    ends = np.array([quantiles[0], *quantiles, quantiles[-1]])
    return float((np.diff(shares) * (ends[1:] + ends[:-1]) / 2).sum())
