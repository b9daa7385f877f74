"""Whether the engine gets on: an iteration that takes too long is a device, a driver or a lock that hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

LOOK_INTERVAL_S = 1.0


async def follow_progress(
    busy_since: Callable[[], float | None], *, stall_s: float, on_change: Callable[[bool, float], Awaitable[None]]
) -> None:
    """Call `on_change` with whether the engine stands still, and for how long, whenever that changes; until cancelled.

    `busy_since`: when the iteration that runs began, by the monotonic clock; None where none does. An engine without
    work rests between iterations, however long, and one that waits for a scheduler goes on with safe plans.
    """
    stands = False
    while True:
        await asyncio.sleep(min(LOOK_INTERVAL_S, stall_s / 4))
        since = busy_since()
        busy_s = 0.0 if since is None else time.monotonic() - since
        if (busy_s > stall_s) != stands:
            stands = not stands
            await on_change(stands, busy_s)
