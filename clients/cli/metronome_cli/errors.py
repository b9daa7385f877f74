"""What went wrong, and what to do: each failure of a command in one line.

The services say what is wrong (the message) and why (the reason). The table here adds what to do about it, in terms
of the command line.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from metronome_cli.command_error import CommandError
from metronome_cli.stack.home import stack_home
from metronome_cli.trust import speaks_tls
from metronome_client import MetronomeError

__all__ = ["CommandError", "executor_errors", "explain", "failure_in_words", "scheduler_errors", "unreachable"]

_REMEDIES = {
    "EMPTY_PROMPT": "give some text to continue",
    "EXCEEDS_MODEL_LEN": "shorten the prompt or lower --max-tokens",
    "EXCEEDS_KV_CACHE": "shorten the prompt, lower --max-tokens, or start an executor with more --num-blocks",
    "NO_CHAT_TEMPLATE": "use `metronome generate`, which continues text",
    "QUEUE_FULL": "try again later, or name another executor with --executor",
    "MODEL_LOADING": "wait until `metronome status` shows it ready",
    "NOT_ALLOWED": "leave --tenant out, or ask with the token of an operator",
    "TENANT_OVER_LIMIT": "try again later",
    "TOO_MANY_CALLS": "try again later, or name another executor with --executor",
    "UNKNOWN_CALLER": "show who you are with --token-file, or --tls-certificate and --tls-key",
    "UNKNOWN_PROFILE": "name another with --profile",
}

_TLS_REMEDY = "check --tls-ca, and --tls-certificate with --tls-key if it asks who you are"

# A connection that broke is UNAVAILABLE, as one that never was; grpc tells them apart in the text alone.
_BROKEN_CONNECTION = ("Socket closed", "Stream removed", "Connection reset")


@contextmanager
def executor_errors(address: str, log: Path | None = None) -> Iterator[None]:
    """Explain the failures of calls to the executor at `address`, which writes to `log` where that is known."""
    try:
        yield
    except MetronomeError as error:
        raise explain(error, "executor", address, log=log) from None


@contextmanager
def scheduler_errors(address: str, state_file: str = "") -> Iterator[None]:
    """Explain the failures of calls to the scheduler at `address`, about the state in `state_file`."""
    try:
        yield
    except MetronomeError as error:
        if state_file and error.reason and error.message.startswith("state"):
            raise CommandError(f"{state_file}: {error.message}") from None
        raise explain(error, "scheduler", address) from None


def explain(error: MetronomeError, service: str, address: str, *, log: Path | None = None) -> CommandError:
    """Say what a failed call to a service means to the user. `log`: the file of the service, where it is known."""
    if error.reason:
        return CommandError(error.message, _REMEDIES.get(error.reason, ""))
    if _is_broken_connection(error):
        if speaks_tls(address):  # with whom who speaks none gets no further
            return CommandError(f"the {service} at {address} speaks TLS, and the connection broke", _TLS_REMEDY)
        log = log or stack_home().log_of(address)
        remedy = f"its log is {log}" if log is not None else "see its log, where it was started"
        return CommandError(f"the {service} at {address} went away", remedy)
    match error.code:
        case grpc.StatusCode.UNAVAILABLE:
            return unreachable(service, address, _another(service))
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return CommandError(f"no {service} answers at {address} in time", _another(service))
        case grpc.StatusCode.UNIMPLEMENTED:
            return CommandError(f"what answers at {address} is no {service}", _another(service))
        case _:
            return CommandError(f"{error.message} ({error.code.name})")


def unreachable(service: str, address: str, remedy: str = "") -> CommandError:
    """Say that no connection came about, and why where that can be seen. `remedy`: where nobody listens."""
    if speaks_tls(address):
        return CommandError(f"what listens at {address} speaks TLS, and no connection comes about", _TLS_REMEDY)
    return CommandError(f"no {service} answers at {address}", remedy)


def _another(service: str) -> str:
    return f"start one with `metronome up` or name another with --{service}"


def failure_in_words(error: MetronomeError) -> str:
    """Say why a call failed where many do, and there is no room for a remedy."""
    return "the executor went away" if _is_broken_connection(error) else error.message


def _is_broken_connection(error: MetronomeError) -> bool:
    """Whether the service was there, and went away."""
    return any(text in error.message for text in _BROKEN_CONNECTION)
