"""Counter-based randomness: a uniform number is a pure function of a request's seed and the token's position.

No generator state exists, so nothing that happens to a request (who shares its batch, eviction, chunking, another
executor) can change its draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Multipliers and increment of SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number of the open interval (0, 1) for each (seed, position), elementwise; 52 random bits.

    The seed is hashed before the position is added, so that neighbouring seeds do not give shifted copies of one
    sequence.
    """
    hashed = _mix(_mix(seeds.astype(np.uint64)) + positions.astype(np.uint64) * _GOLDEN_GAMMA)
    return ((hashed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit flips every output bit with probability about one half."""
    values = values + _GOLDEN_GAMMA
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
