"""Which requests wait for which: nobody short for anybody who is long or compiles."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from executor_service.preparing import LONG_BYTES, NUM_COMPILING, NUM_LONG, Preparing

SHORT: dict[str, Any] = {"num_bytes": LONG_BYTES}
LONG: dict[str, Any] = {"num_bytes": LONG_BYTES + 1}
CONSTRAINED: dict[str, Any] = {"num_bytes": 10, "compiles": True}


@pytest.mark.parametrize(
    ("slow", "others"),
    [(LONG, [SHORT, CONSTRAINED]), ({**LONG, "compiles": True}, [SHORT, CONSTRAINED]), (CONSTRAINED, [SHORT, LONG])],
    ids=["long", "long with a constraint", "constrained"],
)
def test_however_many_take_long_those_of_another_kind_are_prepared(
    slow: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    async def play() -> None:
        preparing, held = Preparing(), Event()
        try:
            waiting = [
                asyncio.ensure_future(preparing.run(held.wait, **slow)) for _ in range(4 * (NUM_LONG + NUM_COMPILING))
            ]
            assert [await preparing.run(lambda: "prepared", **other) for other in others] == ["prepared"] * len(others)
            assert not any(each.done() for each in waiting)
        finally:
            held.set()
        assert all(await asyncio.gather(*waiting))

    asyncio.run(play())
