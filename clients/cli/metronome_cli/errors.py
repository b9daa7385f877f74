"""What went wrong, and what to do: each failure of a command in one line.

The services say what is wrong (the message) and why (the reason). The table here adds what to do about it, in terms
of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from metronome_client import MetronomeError

_REMEDIES = {
    "EMPTY_PROMPT": "give some text to continue",
    "EXCEEDS_MODEL_LEN": "shorten the prompt or lower --max-tokens",
    "EXCEEDS_KV_CACHE": "shorten the prompt, lower --max-tokens, or start an executor with more --num-blocks",
    "NO_CHAT_TEMPLATE": "use `metronome generate`, which continues text",
    "QUEUE_FULL": "try again later, or name another executor with --executor",
    "MODEL_LOADING": "wait until `metronome status` shows it ready",
    "DRAINING": "name another executor with --executor",
    "UNKNOWN_PROFILE": "name another with --profile",
}


class CommandError(Exception):
    """A failure to show to the user: what is wrong and, where there is something, what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what.rstrip('.')}; {remedy}" if remedy else what)


@contextmanager
def executor_errors(address: str) -> Iterator[None]:
    """Explain the failures of calls to the executor at `address`."""
    remedy = "start one with `metronome up` or name another with --executor"
    with _explained(f"no executor answers at {address}", f"{address} does not offer this", remedy):
        yield


@contextmanager
def scheduler_errors(address: str) -> Iterator[None]:
    """Explain the failures of calls to the scheduler at `address`."""
    remedy = "start one with `metronome up` or name another with --scheduler"
    with _explained(f"no scheduler answers at {address}", f"{address} does not offer this", remedy):
        yield


@contextmanager
def _explained(unreachable: str, unknown_method: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except MetronomeError as error:
        if error.reason:
            raise CommandError(error.message, _REMEDIES.get(error.reason, "")) from None
        match error.code:
            case grpc.StatusCode.UNAVAILABLE:
                raise CommandError(unreachable, remedy) from None
            case grpc.StatusCode.UNIMPLEMENTED:
                raise CommandError(unknown_method, remedy) from None
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                raise CommandError(f"{unreachable} in time", remedy) from None
            case _:
                raise CommandError(f"{error.message} ({error.code.name})") from None
