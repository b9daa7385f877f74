"""The process: a gRPC server with health and reflection, from its start to an orderly end.

SIGTERM or SIGINT: health turns NOT_SERVING, new calls are sent elsewhere, open streams have `grace_s` to end. A second
signal ends the process at once. The service holds nothing, so there is nothing to save. SIGHUP: the profiles are read
again.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from metronome.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from scheduler_service.config import SchedulerConfig
from scheduler_service.malformed import MalformedMessageInterceptor
from scheduler_service.metrics import ObserverCollector, SchedulerMetrics
from scheduler_service.observers import ObserverThread
from scheduler_service.profiles import ProfileError, Profiles
from scheduler_service.recorder import Recorder
from scheduler_service.reload import ProfileReloader
from scheduler_service.servicer import SchedulerServicer
from scheduler_service.shadow import Shadow
from scheduler_service.traces import Traces
from scheduler_service.warm_up import warm_up
from service_shell.access import Access
from service_shell.address import AddressError, listen, publish
from service_shell.metrics_endpoint import MetricsEndpoint, new_registry
from service_shell.otlp import TRACING_OFF, otlp_provider
from service_shell.port_settings import channel_limits
from service_shell.recording_file import RecordingSettings
from service_shell.tls import ServerTls

CLOSE_SECONDS = 0.5  # for those who watch its health to hear of the end
SERVICE_NAME = scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerServer:
    """A server that listens, and where. `address`: host:port, the port that was really bound."""

    server: grpc.aio.Server
    servicer: SchedulerServicer
    health: Any  # an aio HealthServicer; grpc_health publishes no types
    address: str
    observers: tuple[ObserverThread, ...]
    metrics: MetricsEndpoint | None
    traces: Traces

    async def stop(self, grace_s: float = 0.0) -> None:
        """Say that no more is served, then let open streams end for so long."""
        await self.health.enter_graceful_shutdown()
        await self.servicer.drain.run(grace_s)
        await self.server.stop(CLOSE_SECONDS)
        for observer in self.observers:
            await asyncio.to_thread(observer.close)
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.close)
        await asyncio.to_thread(self.traces.close)


async def start_server(config: SchedulerConfig, profiles: Profiles) -> SchedulerServer:
    """Listen and serve.

    Raises AddressError if the address is taken or not ours, TlsError, FileError, RecordingError, ProfileError,
    TracingError.
    """
    tls = None if config.tls is None else ServerTls(config.tls)
    access = None if config.access_file is None else Access(config.access_file)
    server = grpc.aio.server(
        interceptors=(MalformedMessageInterceptor(SERVICE_NAME),),
        options=(
            # Without it a second service would share the port silently, and get half of the calls.
            ("grpc.so_reuseport", 0),
            *channel_limits(config),
        ),
    )
    registry = new_registry()
    if tls is not None:
        registry.register(tls)
    metrics = None if config.metrics_address is None else SchedulerMetrics(registry, config)
    traces = _traces(config)
    servicer = SchedulerServicer(profiles, metrics, access, traces)
    observers = _observers(config, servicer)
    registry.register(ObserverCollector(observers))
    scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server)
    health_servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)

    address = listen(server, config.host, config.port, None if tls is None else tls.credentials())
    endpoint = None if config.metrics_address is None else MetricsEndpoint(config.metrics_address, registry)
    await asyncio.to_thread(warm_up)
    for observer in observers:
        observer.start()
    servicer.show_plans_to(observers)
    await server.start()
    for service in (SERVICE_NAME, health.OVERALL_HEALTH):
        await health_servicer.set(service, health_pb2.HealthCheckResponse.SERVING)
    return SchedulerServer(
        server=server,
        servicer=servicer,
        health=health_servicer,
        address=address,
        observers=observers,
        metrics=endpoint,
        traces=traces,
    )


def _traces(config: SchedulerConfig) -> Traces:
    """Raises TracingError."""
    if config.tracing == TRACING_OFF:
        return Traces()
    provider = otlp_provider("metronome-scheduler")
    from scheduler_service.otel_traces import OtelTraces  # which is there now

    return OtelTraces(provider)


async def serve(config: SchedulerConfig, profiles: Profiles) -> None:
    """Serve until a signal comes. Raises what `start_server` does."""
    signals = _signals()  # before anyone can know that the process is here, and end it
    running = await _started(config, profiles, signals)
    tls = "off" if config.tls is None else "on" if config.tls.client_ca is None else "mutual"
    log.info("scheduler_listening", address=running.address, profile=profiles.default.name, tls=tls)
    if config.address_file is not None:
        try:
            publish(running.address, config.address_file)
        except AddressError:
            await running.stop()
            raise
    reloader = ProfileReloader(running.servicer, config.profile, config.profiles_directory)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.asked.set)
    reloading = asyncio.create_task(reloader.run())
    received = await signals.get()
    reloading.cancel()
    log.info("scheduler_stopping", signal=received.name, grace_s=config.grace_s)
    stopping, second = asyncio.create_task(running.stop(config.grace_s)), asyncio.create_task(signals.get())
    await asyncio.wait((stopping, second), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        log.warning("stopped_at_once")
        os._exit(1)
    second.cancel()
    await stopping
    log.info("scheduler_stopped")


async def _started(
    config: SchedulerConfig, profiles: Profiles, signals: asyncio.Queue[signal.Signals]
) -> SchedulerServer:
    """What `start_server` gives; a signal that comes before it does ends the process."""
    starting, first = asyncio.create_task(start_server(config, profiles)), asyncio.create_task(signals.get())
    await asyncio.wait((starting, first), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopped_while_starting")
        os._exit(0)  # a thread that compiles the core cannot be stopped in any other way
    if first.done():
        signals.put_nowait(first.result())
    first.cancel()
    return starting.result()


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
