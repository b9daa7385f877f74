"""A thread with a deep stack, for a library that calls itself as often as what it is given nests.

Where the stack of a thread ends the process ends, with everybody in it. How much a thread has is for the system to say,
8 MiB mostly, which a JSON Schema of 2,000 references, each to the next, goes through. Memory is taken only as far as
the stack is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

STACK_BYTES = 256 << 20

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class DeepThread:
    """Calls functions, one at a time."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        before = threading.stack_size(STACK_BYTES)
        try:
            self._pool.submit(int).result()  # the thread starts with the first call
        finally:
            threading.stack_size(before)

    def call(
        self, function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        """What the function returns or raises. From any other thread, which waits meanwhile."""
        return self._pool.submit(function, *args, **kwargs).result()
