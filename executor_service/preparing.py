"""Threads that prepare requests: what may take seconds keeps nobody waiting who takes milliseconds.

A tokenizer takes half a minute for the longest text that it is given, only to find that no model reads so much of it,
and a constraint takes seconds to compile. Each has threads of its own, so that a client that sends many of them keeps
others of their kind waiting, and those alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LONG_BYTES = 1 << 16  # of a message; a tokenizer reads as much in a tenth of a second
NUM_SHORT, NUM_LONG, NUM_COMPILING = 4, 2, 2

_Result = TypeVar("_Result")


class Preparing:
    """Runs what prepares a request on a thread that fits it."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(NUM_SHORT, "prepare")
        self._long = ThreadPoolExecutor(NUM_LONG, "prepare-long")
        self._compiling = ThreadPoolExecutor(NUM_COMPILING, "prepare-constraint")

    async def run(self, prepare: Callable[[], _Result], *, num_bytes: int, compiles: bool = False) -> _Result:
        """What it returns or raises. ``num_bytes``: of the message; ``compiles``: it has a constraint."""
        threads = self._long if num_bytes > LONG_BYTES else self._compiling if compiles else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, prepare)
