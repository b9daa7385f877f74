"""Settings that every service has: where it listens, with which TLS, where its metrics and traces go, and its logs."""

from __future__ import annotations

from typing import Protocol

from service_shell.address import is_loopback
from service_shell.logs import LOG_LEVELS, LogFormat
from service_shell.metrics_endpoint import metrics_address
from service_shell.otlp import TRACING_OFF, TRACING_OTLP
from service_shell.setting import Setting, member, message_size, one_of, path, port, switch, text, whole
from service_shell.setting_sources import SettingError, Values
from service_shell.tls import TlsFiles

MIN_PING_INTERVAL_MS = 5_000
"""Clients may ping every 10 s (proto/README.md), and clocks and networks are not exact."""

KEEPALIVE_MS = 30_000
"""A client that has sent nothing for so long is asked whether it is there (docs/adr/0038)."""

KEEPALIVE_TIMEOUT_MS = 10_000
"""One that does not answer for so long has gone: its calls end as if it had left them."""


class PortLimits(Protocol):
    """The part of a service's configuration that bounds what comes in on its port."""

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def max_metadata_bytes(self) -> int: ...

    @property
    def max_streams_per_connection(self) -> int: ...


LOGS = (
    Setting("log_format", "logs", member(LogFormat), "console or json", default="console"),
    Setting("log_level", "logs", one_of(*LOG_LEVELS), "debug, info, warning or error", default="info"),
)
METRICS = (
    Setting(
        "metrics_address",
        "metrics",
        metrics_address,
        "[host:]port to serve metrics for Prometheus on; a port alone is one of loopback (default: no metrics)",
    ),
)
TRACES = (
    Setting(
        "tracing",
        "traces",
        one_of(TRACING_OFF, TRACING_OTLP),
        "off, or otlp: traces by OpenTelemetry, as its own variables OTEL_* say where to and how many",
        default=TRACING_OFF,
    ),
)


def port_settings(default_port: int) -> tuple[Setting, ...]:
    """Those of the port that a service listens on."""
    return (
        Setting("host", "serving", text, "address to listen on", default="127.0.0.1"),
        Setting("port", "serving", port, "port to listen on; 0: any free one", default=str(default_port)),
        Setting("tls_certificate", "serving", path, "PEM file: serve with TLS; read again when it changes"),
        Setting("tls_key", "serving", path, "PEM file with the key of the certificate"),
        Setting("tls_client_ca", "serving", path, "PEM file: clients must show a certificate that it signed"),
        Setting("insecure", "serving", switch, "without TLS also on an address that is no loopback", default="off"),
        Setting("address_file", "serving", path, "file that gets the bound host:port"),
        Setting(
            "access_file",
            "serving",
            path,
            "TOML file with the tokens and certificates that are let in, and their tenants; read again when it changes "
            "(default: everybody is)",
        ),
        Setting("max_message_bytes", "serving", message_size, "largest message, either way", default="64MiB"),
        Setting(
            "max_metadata_bytes", "serving", message_size, "largest headers of a call, all together", default="16KiB"
        ),
        Setting("max_streams_per_connection", "serving", whole(1, 2**31 - 1), "calls open at once", default="4096"),
    )


def channel_limits(config: PortLimits) -> tuple[tuple[str, int], ...]:
    """What gRPC itself allows, refuses or holds back on a port, as options of its server."""
    return (
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Above the first it may refuse, above the second it does.
        ("grpc.max_metadata_size", config.max_metadata_bytes),
        ("grpc.absolute_max_metadata_size", config.max_metadata_bytes),
        ("grpc.max_concurrent_streams", config.max_streams_per_connection),
        # Also from those who only wait.
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        *_keepalive(),
    )


def _keepalive() -> tuple[tuple[str, int], ...]:
    """How a peer that vanished without a word is noticed, as options of a server."""
    return (
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # else a ping that is under way gets a minute
        ("grpc.http2.max_pings_without_data", 0),  # else it is asked twice and never again
    )


def tls_of(values: Values) -> TlsFiles | None:
    """None: no TLS. Raises SettingError where files are missing, or TLS is and the address asks for it."""
    certificate, key, client_ca = values["tls_certificate"], values["tls_key"], values["tls_client_ca"]
    if certificate is None and key is None:
        if client_ca is not None:
            raise SettingError("argument --tls-client-ca: needs --tls-certificate and --tls-key")
        _check_address(values)
        return None
    if certificate is None or key is None:
        raise SettingError("arguments --tls-certificate and --tls-key need each other")
    return TlsFiles(certificate=certificate, key=key, client_ca=client_ca)


def _check_address(values: Values) -> None:
    host = values["host"]
    if not (values["insecure"] or is_loopback(host)):
        raise SettingError(
            f"argument --host: {host} is no loopback address: give --tls-certificate and --tls-key, "
            "or --insecure where the network is to be trusted"
        )
