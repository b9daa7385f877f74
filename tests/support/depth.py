"""How many examples a property is tried on: a few hundred that are always the same, or at night many new ones.

`make test` runs the profile `default`, `make test-nightly` the profile `nightly` (`--hypothesis-profile`). Properties
that draw their examples themselves, from seeds, ask here for the same two depths.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from hypothesis import HealthCheck, settings

NIGHTLY_EXAMPLES = 10_000


def register_profiles() -> None:
    """Make both known to Hypothesis, and the seeded one the default."""
    # How fast examples are drawn says more about what else the machine does than about a test.
    common = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("default", common, max_examples=300, derandomize=True)
    settings.register_profile(
        "nightly",
        common,
        max_examples=NIGHTLY_EXAMPLES,
        derandomize=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    # One round of `make fuzz`, which goes on with new rounds until its time is up.
    settings.register_profile("fuzz", settings.get_profile("nightly"), max_examples=2000)
    settings.load_profile("default")


def is_nightly() -> bool:
    return settings.get_current_profile_name() == "nightly"


def num_examples(by_default: int, at_night: int = NIGHTLY_EXAMPLES) -> int:
    """How many examples to try where the default profile's number is not the right one."""
    return at_night if is_nightly() else by_default


def seeds(by_default: int) -> Sequence[int]:
    """Seeds for examples: 0, 1, 2 ... by default, and at night others each time. A test names the one that fails."""
    first = secrets.randbelow(2**48) if is_nightly() else 0
    return range(first, first + num_examples(by_default))
