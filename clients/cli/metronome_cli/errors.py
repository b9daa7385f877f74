"""What went wrong, and what to do: each failure of a command in one line.

The services say what is wrong (the message) and why (the reason). The table here adds what to do about it, in terms
of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

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

# A connection that broke is UNAVAILABLE, as one that never was; grpc tells them apart in the text alone.
_BROKEN_CONNECTION = ("Socket closed", "Stream removed", "Connection reset")


class CommandError(Exception):
    """A failure to show to the user: what is wrong and, where there is something, what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what.rstrip('.')}; {remedy}" if remedy else what)


def executor_errors(address: str) -> AbstractContextManager[None]:
    """Explain the failures of calls to the executor at `address`."""
    return _explained("executor", address)


def scheduler_errors(address: str) -> AbstractContextManager[None]:
    """Explain the failures of calls to the scheduler at `address`."""
    return _explained("scheduler", address)


@contextmanager
def _explained(service: str, address: str) -> Iterator[None]:
    try:
        yield
    except MetronomeError as error:
        raise explain(error, service, address) from None


def explain(error: MetronomeError, service: str, address: str) -> CommandError:
    """Say what a failed call to a service means to the user."""
    another = f"start one with `metronome up` or name another with --{service}"
    if error.reason:
        return CommandError(error.message, _REMEDIES.get(error.reason, ""))
    if any(text in error.message for text in _BROKEN_CONNECTION):
        return CommandError(f"the {service} at {address} went away", "see its log")
    match error.code:
        case grpc.StatusCode.UNAVAILABLE:
            return CommandError(f"no {service} answers at {address}", another)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CommandError(f"no {service} answers at {address} in time", another)
        case grpc.StatusCode.UNIMPLEMENTED:
            return CommandError(f"what answers at {address} is no {service}", another)
        case _:
            return CommandError(f"{error.message} ({error.code.name})")
