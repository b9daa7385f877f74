"""Life of an executor process: listen, load, serve, drain, stop.

It listens at once and says NOT_SERVING until the model is loaded, so that whoever waits for it can tell a start from a
failure. The first SIGTERM or SIGINT drains: new requests are refused, those accepted have ``grace_s`` to finish. A
second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from executor_service.build import build_executor, threads_of_rank
from executor_service.config import Config
from executor_service.control_servicer import ExecutorServicer
from executor_service.engine.record import Observer
from executor_service.engine.request import EndCause
from executor_service.executor import Executor
from executor_service.gate import Gate
from executor_service.heap import end_start
from executor_service.malformed import MalformedMessageInterceptor
from executor_service.metrics.collector import ExecutorCollector
from executor_service.metrics.tally import Tally
from executor_service.metrics.tenants import TenantLabels
from executor_service.observers import Observers, PassTraces
from executor_service.progress import follow_progress
from executor_service.servicer import InferenceServicer, Serving
from executor_service.streams import Streams
from executor_service.telemetry import EngineLog
from executor_service.traces import Traces
from executor_service.watch import WatchHub
from metronome.executor.v1 import executor_pb2
from metronome.executor.v1.executor_pb2_grpc import add_ExecutorServiceServicer_to_server
from metronome.inference.v1 import inference_pb2
from metronome.inference.v1.inference_pb2_grpc import add_InferenceServiceServicer_to_server
from service_shell.access import Access
from service_shell.address import listen, publish
from service_shell.metrics_endpoint import MetricsEndpoint, new_registry
from service_shell.otlp import TRACING_OFF, otlp_provider
from service_shell.port_settings import channel_limits
from service_shell.tls import ServerTls

log = structlog.get_logger()

SERVICES = (
    inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name,
    executor_pb2.DESCRIPTOR.services_by_name["ExecutorService"].full_name,
)


def _options(config: Config) -> tuple[tuple[str, int], ...]:
    return (
        # Two servers on one port would share its connections and neither would know.
        ("grpc.so_reuseport", 0),
        *channel_limits(config),
    )


def _traces(config: Config) -> Traces:
    """Raises TracingError."""
    if config.tracing == TRACING_OFF:
        return Traces()
    provider = otlp_provider("metronome-executor")
    from executor_service.otel_traces import OtelTraces  # which is there now

    return OtelTraces(provider)


class Server:
    """One executor process."""

    def __init__(self, config: Config) -> None:
        """Raises FileError or TracingError."""
        loop = asyncio.get_running_loop()
        self._config = config
        self._executor_id = config.executor_id or ""
        self._loop = loop
        self._hub = WatchHub(loop)
        access = None if config.access_file is None else Access(config.access_file)
        self._serving = Serving(streams=Streams(loop), access=access)
        self._health = HealthServicer()
        self._server = grpc.aio.server(interceptors=[MalformedMessageInterceptor()], options=_options(config))
        self._stop_asked = asyncio.Event()
        self._engine: threading.Thread | None = None
        self._engine_died = False
        self._tally = Tally(TenantLabels(config.metrics_max_tenants))
        self._registry = new_registry()
        self._metrics: MetricsEndpoint | None = None
        control = ExecutorServicer(self._serving, self._hub, begin_drain=self._begin_drain)
        self._traces = _traces(config)
        gate = Gate(max_num_calls=config.max_num_calls, quota_file=config.quota_file)
        inference = InferenceServicer(self._serving, gate, self._traces, self._tally.request_refused)
        add_InferenceServiceServicer_to_server(inference, self._server)
        add_ExecutorServiceServicer_to_server(control, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*SERVICES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME),
            self._server,
        )

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit status.

        Raises AddressError, TlsError, FileError, RecordingError, ModelSourceError, DeviceError, SizeError,
        WorkerStartError, DeviceLostError.
        """
        self._handle_signals()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        try:
            await self._listen()
            # Its threads for products end with the thread that loads: OpenMP counts them all, and where they are more
            # than there are cores it lets those that wait for one another sleep at once, in every pass.
            loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
            loading = self._loop.run_in_executor(loader, self._load)
            stopping = asyncio.ensure_future(self._stop_asked.wait())
            await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                log.info("stopped_while_loading")
                os._exit(0)  # a thread that loads a model cannot be stopped in any other way
            loader.shutdown()
            end_start()
            await self._begin_serving(loading.result())
            following = asyncio.create_task(self._follow_progress(loading.result()))
            await stopping
            following.cancel()
            await self._drain()
        finally:
            self._ignore_signals()
            await self._server.stop(grace=0.5)
            if self._metrics is not None:
                await asyncio.to_thread(self._metrics.close)
            await asyncio.to_thread(self._traces.close)
        return 1 if self._engine_died else 0

    async def _listen(self) -> None:
        config = self._config
        if config.metrics_address is not None:
            self._metrics = MetricsEndpoint(config.metrics_address, self._registry)
        port_tls = None if config.tls is None else ServerTls(config.tls)
        if port_tls is not None:
            self._registry.register(port_tls)
        address = listen(self._server, config.host, config.port, None if port_tls is None else port_tls.credentials())
        await self._server.start()
        port = address.rpartition(":")[2]
        self._executor_id = self._executor_id or f"{socket.gethostname()}:{port}"
        tls = "off" if config.tls is None else "on" if config.tls.client_ca is None else "mutual"
        log.info("executor_listening", address=address, executor_id=self._executor_id, tls=tls)
        if config.address_file is not None:
            publish(address, config.address_file)

    def _load(self) -> Executor:
        observers: list[Observer] = [EngineLog(self._executor_id, self._hub.publish)]
        if self._metrics is not None:
            observers.append(self._tally)
        if self._config.tracing != TRACING_OFF:
            observers.append(PassTraces(self._traces, self._executor_id))
        return build_executor(
            self._config,
            executor_id=self._executor_id,
            sink=self._serving.streams.deliver,
            observer=Observers(*observers),
            traces=self._traces,
            progress=lambda message: log.info("model_progress", message=message),
        )

    async def _begin_serving(self, executor: Executor) -> None:
        self._serving.executor = executor
        self._registry.register(ExecutorCollector(executor, self._tally))
        self._engine = executor.start(self._on_engine_death, threads=threads_of_rank(self._config))
        if not self._serving.draining:  # may be asked for while the model loads
            await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        log.info("executor_serving", executor_id=self._executor_id, model=self._config.model)

    async def _follow_progress(self, executor: Executor) -> None:
        """Have health say whether the engine gets on, as long as requests are taken at all."""

        async def note(stands: bool, busy_s: float) -> None:
            if stands:
                log.error("engine_stands_still", iteration_s=round(busy_s, 1), stall_s=self._config.stall_s)
            else:
                log.info("engine_gets_on")
            if not self._serving.draining:
                status = (
                    health_pb2.HealthCheckResponse.NOT_SERVING if stands else health_pb2.HealthCheckResponse.SERVING
                )
                await self._set_health(status)

        await follow_progress(lambda: executor.engine.busy_since, stall_s=self._config.stall_s, on_change=note)

    async def _drain(self) -> None:
        """Let accepted requests finish, as far as the grace period goes; the engine ends the rest."""
        await self._begin_drain()
        log.info("draining", num_requests=len(self._serving.streams.names()), grace_s=self._config.grace_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.grace_s):
                await self._serving.streams.wait_until_empty()
        executor = self._serving.executor
        assert executor is not None
        assert self._engine is not None
        executor.engine.inbox.close()
        with suppress(TimeoutError):  # a pass may take that long; then the end of the process ends it
            async with asyncio.timeout(self._config.grace_s + 1):
                await self._serving.streams.wait_until_empty()
                executor.planner.close()
                await asyncio.to_thread(self._engine.join)
                await asyncio.to_thread(executor.workers.close)
        self._ignore_signals()
        log.info("executor_stopped")

    async def _begin_drain(self) -> None:
        """Take no new requests, and say so to whoever asks for health.

        The scheduler is not told: it would admit nobody any more, and those that wait have been accepted too.
        """
        self._serving.draining = True
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)

    def _on_engine_death(self) -> None:
        """Called on a thread that is not the loop's, when nothing is computed any more: tell everybody, and end the
        process."""

        def end() -> None:
            executor = self._serving.executor
            assert executor is not None
            executor.engine.inbox.close()
            self._serving.streams.end_all(EndCause.FAILED, "the executor failed; its log has the cause")
            self._stop_asked.set()

        self._engine_died = True
        self._loop.call_soon_threadsafe(end)

    def _handle_signals(self) -> None:
        def stop() -> None:
            if self._stop_asked.is_set():
                log.warning("stopped_at_once")
                os._exit(1)
            self._stop_asked.set()

        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signal_number, stop)

    def _ignore_signals(self) -> None:
        """All is done: one that comes now can hurry nothing, and must not make a failure of an orderly end."""
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(signal_number)
            signal.signal(signal_number, signal.SIG_IGN)

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        for service in ("", *SERVICES):
            await self._health.set(service, status)
