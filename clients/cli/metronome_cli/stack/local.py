"""The local stack as a whole: the scheduler and an executor that asks it; the executor is stopped first.

They start side by side: the executor asks for its first plan long after the scheduler is there. Where TLS may be spoken
the scheduler comes first, since what the executor is to show to it depends on how it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metronome_cli.command_error import CommandError
from metronome_cli.errors import scheduler_errors
from metronome_cli.stack.services import (
    ExecutorSettings,
    executor_command,
    free_port,
    local_address,
    scheduler_command,
)
from metronome_cli.stack.start import Lifetime, Service, launch, wait_until_serving
from metronome_cli.stack.stop import stop_all
from metronome_cli.trust import NO_TLS, Trust
from metronome_client import SchedulerClient

_SCHEDULER_TIMEOUT_S = 180.0  # it compiles its core where nobody has yet, which takes half a minute of a core
_EXECUTOR_TIMEOUT_S = 900.0  # it may download a model


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """What to start. Port 0 takes one that is free. `scheduler_address`: one that runs already, to start none.

    `trust`: how to connect to services that speak TLS, because they are told to by their environment or run already.
    The executor shows the same to the scheduler.
    """

    executor: ExecutorSettings
    scheduler_port: int = 0
    executor_port: int = 0
    scheduler_address: str | None = None
    trust: Trust = NO_TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack that reported healthy. `services` are those that were started, in that order."""

    scheduler_address: str
    executor_address: str
    services: tuple[Service, ...]

    def stop(self) -> None:
        """Stop what was started."""
        stop_services(self.services)


def start_stack(
    settings: StackSettings,
    directory: Path,
    lifetime: Lifetime,
    *,
    on_progress: Callable[[str], None],
    on_launch: Callable[[Sequence[Service]], None],
) -> Stack:
    """Start a stack with its files in `directory`, and stop it again where a part of it fails or the user interrupts.

    `on_progress` gets what happens, in words; `on_launch` all services launched so far, at each one more.
    """
    launched: list[Service] = []

    def start(name: str, command: list[str]) -> Service:
        launched.append(launch(name, command, directory, lifetime))
        on_launch(launched)
        return launched[-1]

    def start_executor(scheduler_address: str, trust: Trust) -> Service:
        shown: dict[str, Any] = {f"scheduler_{name}": path for name, path in trust.files.items()}
        executor = replace(settings.executor, **shown)
        return start("executor", executor_command(settings.executor_port, scheduler_address, executor))

    def wait(service: Service, timeout_s: float) -> str:
        return wait_until_serving(service, timeout_s=timeout_s, on_progress=on_progress, trust=settings.trust)

    executor: Service | None = None
    try:
        scheduler_address = settings.scheduler_address
        if scheduler_address is None:
            port = settings.scheduler_port or free_port()
            scheduler = start("scheduler", scheduler_command(port))
            if settings.trust.tls is None:
                on_progress("starting the scheduler and the executor")
                executor = start_executor(local_address(port), NO_TLS)
            else:
                on_progress("starting the scheduler")
            scheduler_address = wait(scheduler, _SCHEDULER_TIMEOUT_S)
        trust = settings.trust.towards(scheduler_address)
        _check_profile(scheduler_address, trust, settings.executor.profile)
        if executor is None:
            on_progress("starting the executor")
            executor = start_executor(scheduler_address, trust)
        executor_address = wait(executor, _EXECUTOR_TIMEOUT_S)
    except BaseException:  # Ctrl-C included: nothing may stay behind
        stop_services(launched)
        raise
    return Stack(scheduler_address=scheduler_address, executor_address=executor_address, services=tuple(launched))


def _check_profile(scheduler_address: str, trust: Trust, profile: str | None) -> None:
    """Refuse now what would leave every request waiting: no scheduler, or one without the profile."""
    with (
        scheduler_errors(scheduler_address),
        SchedulerClient(scheduler_address, tls=trust.tls, token=trust.token) as client,
    ):
        names = [known.name for known in client.list_profiles()]
    if profile is not None and profile not in names:
        there = f"there are {', '.join(names)}" if names else "it has none"
        raise CommandError(f"the scheduler at {scheduler_address} has no profile {profile!r}", there)


def stop_services(services: Sequence[Service]) -> None:
    """Stop services that this process started, the last one first."""
    stop_all(service.process for service in reversed(services))
    for service in services:
        service.process.reap()
