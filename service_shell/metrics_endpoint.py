"""Metrics over HTTP, for Prometheus, on a port of their own."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

import structlog
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)

from service_shell.address import AddressError, join

log = structlog.get_logger(__name__)

DEFAULT_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    host: str
    port: int  # 0: any free one


def metrics_address(value: str) -> MetricsAddress | None:
    """`9100`, on loopback, `10.0.0.7:9100` or `[::1]:9100`; None where it is empty. A kind of setting (setting.py)."""
    if not value:
        return None
    host, colon, port = value.rpartition(":")
    if (colon and not host) or not (port.isdecimal() and int(port) <= 65535):
        raise ValueError("is not an address for metrics, such as 9100 or 127.0.0.1:9100")
    return MetricsAddress(host=host.removeprefix("[").removesuffix("]") or DEFAULT_HOST, port=int(port))


def new_registry() -> CollectorRegistry:
    """With what Prometheus knows of any process: memory, processor time, open files, the interpreter."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would be a second series beside each counter
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class MetricsEndpoint:
    """Serves a registry, on threads of its own."""

    def __init__(self, address: MetricsAddress, registry: CollectorRegistry) -> None:
        """Raises AddressError."""
        try:
            server, self._thread = start_http_server(address.port, address.host, registry=registry)
        except OSError as error:
            where = join(address.host, address.port)
            why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
            raise AddressError(f"{where} {why}; choose another with --metrics-address") from error
        self._server: Any = server
        self.address = join(address.host, server.server_port)
        log.info("metrics_listening", address=self.address)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
