"""Memory that was freed goes back to the system: what a start needs for a moment would else stay with the process.

A tokenizer of 262,144 tokens is read by way of some 300 MiB of small pieces, which the allocator keeps for the next
such reading; there is none.

And what a start has made is looked at once for cycles that nobody reaches, and not each time that the interpreter has
made some more objects: it is a million of them, which live as long as the process does. More than half are of modules
that were imported before, and are not looked at at all.
"""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back_freed_memory() -> None:
    """What libraries freed; cycles of objects have little of it. Does nothing where the C library is not glibc."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def begin_start() -> None:
    """From here on all objects are kept, as far as cycles of them are concerned."""
    gc.disable()


def end_imports() -> None:
    """What was made so far is never looked at: modules, which stay. It would be most of what each look takes."""
    gc.freeze()


def end_start() -> None:
    """From here on cycles are found among objects that were made since; none of those before is looked at again."""
    gc.collect()
    gc.freeze()
    gc.enable()
