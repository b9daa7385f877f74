"""The two clocks of the lab: records count from the start of the run, states from 1970 as those of executors do."""

from __future__ import annotations

# The run starts here on the clock that executors show schedulers: any time, but none before 1970.
EPOCH_US = 1_700_000_000_000_000
