"""How much a fleet can take, or how large it must be, for targets that 99 of 100 requests, and gaps, have to meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from metronome_lab.errors import LabError
from metronome_lab.figures import Figures, Targets, figures_of
from metronome_lab.runs import Run

# The highest rate is known within so much of itself.
PRECISION = 0.02
_LEAST_RATE, _MOST_RATE = 2.0**-12, 2.0**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What meets the targets. `rate`: times the recorded one; 0: no rate does, and `figures` are of the least tried."""

    rate: float
    num_executors: int
    figures: Figures
    num_runs: int


def meets(figures: Figures, targets: Targets) -> bool:
    """Whether all requests were taken and answered, and the 99th percentiles are within the targets."""
    in_time = figures.ttft.p99_ms * 1e3 <= targets.ttft_us and figures.itl.p99_ms * 1e3 <= targets.itl_us
    return in_time and figures.num_finished == figures.num_requests


def highest_rate(run: Run, targets: Targets) -> Capacity:
    """Search from the rate of the run, in steps of two and then by halves. Raises LabError."""
    found = _Search(run, targets)
    low, high = _bracket(run.scenario.rate, found.meets_at)
    while low and high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if found.meets_at(middle) else (low, middle)
    figures = found.figures[low or high]
    return Capacity(rate=low, num_executors=run.fleet.num_executors, figures=figures, num_runs=len(found.figures))


def fewest_executors(run: Run, targets: Targets) -> Capacity:
    """The smallest fleet at the rate of the run. Raises LabError where one executor a request is not enough."""
    tried: dict[int, Figures] = {}

    def is_enough(num_executors: int) -> bool:
        fleet = replace(run.fleet, num_executors=num_executors)
        tried[num_executors] = figures_of(replace(run.without_iterations(), fleet=fleet).play(), targets)
        return meets(tried[num_executors], targets)

    too_few, enough = 0, 1
    while not is_enough(enough):
        too_few, enough = enough, 2 * enough
        if too_few >= tried[too_few].num_requests:
            raise LabError(f"{run.name}: an executor for each request does not meet the targets")
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return Capacity(rate=run.scenario.rate, num_executors=enough, figures=tried[enough], num_runs=len(tried))


class _Search:
    """Runs at several rates, each played once. `figures`: by rate."""

    def __init__(self, run: Run, targets: Targets) -> None:
        self._run = run.without_iterations()
        self._targets = targets
        self.figures: dict[float, Figures] = {}

    def meets_at(self, rate: float) -> bool:
        self.figures[rate] = figures_of(self._run.at_rate(rate).play(), self._targets)
        return meets(self.figures[rate], self._targets)


def _bracket(start: float, meets_at: Callable[[float], bool]) -> tuple[float, float]:
    """A rate that meets the targets, 0 for none, and twice that, which does not, as far as rates go."""
    low = high = start
    if meets_at(start):
        while high < _MOST_RATE:
            low, high = high, 2 * high
            if not meets_at(high):
                return low, high
        return high, high
    while low > _LEAST_RATE:
        low, high = low / 2, low
        if meets_at(low):
            return low, high
    return 0.0, low
