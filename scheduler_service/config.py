"""Configuration of the service: its settings (settings.py), read once at the start and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scheduler_service.profiles import PROFILES_DIRECTORY
from scheduler_service.settings import SCHEDULER
from service_shell.logs import LogFormat
from service_shell.metrics_endpoint import MetricsAddress
from service_shell.port_settings import tls_of
from service_shell.setting_sources import Values, configure
from service_shell.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """`port` 0: any free one. `address_file`: gets `host:port` once the service listens; None: no file.

    `tls` None: none. `metrics_address` None: no metrics. `record_dir` None: nothing is recorded.
    `shadow_profile` None: nothing is planned twice.
    """

    host: str
    port: int
    tls: TlsFiles | None
    address_file: Path | None
    access_file: Path | None  # None: everybody may call
    grace_s: float
    max_message_bytes: int
    max_metadata_bytes: int  # of a call
    max_streams_per_connection: int
    profile: str
    profiles_directory: Path
    shadow_profile: str | None
    report_interval_s: int
    record_dir: Path | None
    record_max_bytes: int  # a file
    record_max_files: int
    metrics_address: MetricsAddress | None
    tracing: str  # off or otlp
    log_format: LogFormat
    log_level: str


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> SchedulerConfig:
    """Exits with status 2 and a message where a setting is wrong, with 0 where settings or help were to be printed."""
    return configure(SCHEDULER, argv, environ, _config)


def _config(values: Values) -> SchedulerConfig:
    return SchedulerConfig(
        host=values["host"],
        port=values["port"],
        tls=tls_of(values),
        address_file=values["address_file"],
        access_file=values["access_file"],
        grace_s=values["grace_s"],
        max_message_bytes=values["max_message_bytes"],
        max_metadata_bytes=values["max_metadata_bytes"],
        max_streams_per_connection=values["max_streams_per_connection"],
        profile=values["profile"],
        profiles_directory=values["profiles_directory"] or PROFILES_DIRECTORY,
        shadow_profile=values["shadow_profile"],
        report_interval_s=values["report_interval_s"],
        record_dir=values["record_dir"],
        record_max_bytes=values["record_max_bytes"],
        record_max_files=values["record_max_files"],
        metrics_address=values["metrics_address"],
        tracing=values["tracing"],
        log_format=values["log_format"],
        log_level=values["log_level"],
    )
