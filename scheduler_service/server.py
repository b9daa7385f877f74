"""The process: a gRPC server with health and reflection, from its start to an orderly end.

SIGTERM or SIGINT: health turns NOT_SERVING, new calls are refused, open ones get `GRACE_SECONDS` to end. A second
signal ends them at once. The service holds nothing, so there is nothing to save. SIGHUP: the profiles are read again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_service.config import SchedulerConfig
from scheduler_service.malformed import MalformedMessageInterceptor
from scheduler_service.observers import ObserverThread
from scheduler_service.profiles import ProfileError, Profiles
from scheduler_service.recorder import Recorder
from scheduler_service.recording_file import RecordingSettings
from scheduler_service.reload import ProfileReloader
from scheduler_service.servicer import SchedulerServicer
from scheduler_service.shadow import Shadow

GRACE_SECONDS = 5.0
SERVICE_NAME = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name

log = structlog.get_logger(__name__)


class AddressError(Exception):
    """The service cannot listen where it was told to, or cannot say where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerServer:
    """A server that listens, and where. `address`: host:port, the port that was really bound."""

    server: grpc.aio.Server
    servicer: SchedulerServicer
    health: Any  # an aio HealthServicer; grpc_health publishes no types
    address: str
    observers: tuple[ObserverThread, ...]

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Say that no more is served, then let open calls end for so long."""
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)
        for observer in self.observers:
            await asyncio.to_thread(observer.close)


async def start_server(config: SchedulerConfig, profiles: Profiles) -> SchedulerServer:
    """Listen and serve. Raises AddressError if the address is taken or not ours, RecordingError, ProfileError."""
    server = grpc.aio.server(
        interceptors=(MalformedMessageInterceptor(SERVICE_NAME),),
        options=(
            # Without it a second service would share the port silently, and get half of the calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", config.max_message_bytes),
            ("grpc.max_send_message_length", config.max_message_bytes),
        ),
    )
    servicer = SchedulerServicer(profiles)
    observers = _observers(config, servicer)
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    port = _listen(server, config)
    for observer in observers:
        observer.start()
    servicer.show_plans_to(observers)
    await server.start()
    for service in (SERVICE_NAME, health.OVERALL_HEALTH):
        await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    address = _address(config.host, port)
    return SchedulerServer(
        server=server, servicer=servicer, health=health_servicer, address=address, observers=observers
    )


async def serve(config: SchedulerConfig, profiles: Profiles) -> None:
    """Serve until a signal comes. Raises what `start_server` does."""
    signals = _signals()  # before anyone can know that the process is here, and end it
    running = await start_server(config, profiles)
    log.info("scheduler_listening", address=running.address, profile=profiles.default.name)
    if config.address_file is not None:
        try:
            _write_whole(config.address_file, running.address)
        except AddressError:
            await running.stop(grace_seconds=0)
            raise
    reloader = ProfileReloader(running.servicer, config.profile, config.profiles_directory)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.asked.set)
    reloading = asyncio.create_task(reloader.run())
    received = await signals.get()
    reloading.cancel()
    log.info("scheduler_stopping", signal=received.name, grace_seconds=GRACE_SECONDS)
    stopping = asyncio.create_task(running.stop())
    second = asyncio.create_task(signals.get())
    await asyncio.wait((stopping, second), return_when=asyncio.FIRST_COMPLETED)
    if second.done():
        await running.server.stop(None)
    second.cancel()
    await stopping
    log.info("scheduler_stopped")


def _observers(config: SchedulerConfig, servicer: SchedulerServicer) -> tuple[ObserverThread, ...]:
    """What looks at planned calls, as far as it was asked for."""
    observers: list[Recorder | Shadow] = []
    if config.record_dir is not None:
        settings = RecordingSettings(
            directory=config.record_dir, max_file_bytes=config.record_max_bytes, max_files=config.record_max_files
        )
        observers.append(Recorder(settings))
    if (name := config.shadow_profile) is not None:
        if name not in servicer.profiles.by_name:
            known = ", ".join(servicer.profiles.by_name)
            raise ProfileError(f"no profile is named {name!r}; choose one of {known} with --shadow-profile")
        # Looked up at each call: profiles are reloaded while the service runs.
        observers.append(Shadow(name, lambda: servicer.profiles.policy(name, "shadow_profile")))
    return tuple(ObserverThread(observer, report_interval_s=config.report_interval_s) for observer in observers)


def _signals() -> asyncio.Queue[signal.Signals]:
    """The signals that ask the process to end, as they come."""
    received: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received.put_nowait, number)
    return received


def _listen(server: grpc.aio.Server, config: SchedulerConfig) -> int:
    _try_address(config.host, config.port)
    try:
        return server.add_insecure_port(_address(config.host, config.port))
    except RuntimeError as error:
        raise AddressError(f"cannot listen on {_address(config.host, config.port)}") from error


def _try_address(host: str, port: int) -> None:
    """Raise AddressError with the reason if nobody can listen there; gRPC itself would not say why."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressError(f"port {port} on {host} is taken; choose another with --port") from error
        text = f"cannot listen on {_address(host, port)}: {error.strerror}; choose another address with --host"
        raise AddressError(text) from error


def _address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees all of it or none. Raises AddressError."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise AddressError(f"cannot write --address-file {path}: {error.strerror}") from error
