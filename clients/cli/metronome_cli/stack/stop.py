"""Stopping: SIGTERM, time to drain, SIGKILL. The executor first, so that it has a scheduler until its end."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

from metronome_cli.stack.identity import ProcessIdentity

# A service gives those that it serves 10 s of its own, and some more to end their calls in order: a kill must not come
# before that, since clients would see a crash.
GRACE_S = 30.0
_POLL_S = 0.05


def stop_all(processes: Iterable[ProcessIdentity], *, grace_s: float = GRACE_S) -> None:
    """Stop processes one after another, in the order given. Those that have ended are left alone."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
        if not _ended_within(process, grace_s):
            process.send_signal(signal.SIGKILL)
            _ended_within(process, grace_s)


def _ended_within(process: ProcessIdentity, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.is_alive():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
