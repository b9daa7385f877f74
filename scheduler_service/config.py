"""Settings of the service: flags before environment (`METRONOME_SCHEDULER_*`) before defaults, checked at start."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from scheduler_service.address import is_loopback
from scheduler_service.profiles import DEFAULT_PROFILE, PROFILES_DIRECTORY
from scheduler_service.tls import TlsFiles

ENVIRONMENT_PREFIX = "METRONOME_SCHEDULER_"

Choice = TypeVar("Choice", bound=StrEnum)


class LogFormat(StrEnum):
    """How log lines look."""

    CONSOLE = "console"
    JSON = "json"


class LogLevel(StrEnum):
    """Least level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings. `port` 0: any free one. `address_file`: gets `host:port` once the service listens; None: no file.

    `tls` None: none. `record_dir` None: nothing is recorded. `shadow_profile` None: nothing is planned twice.
    """

    host: str = "127.0.0.1"
    port: int = 50051
    tls: TlsFiles | None = None
    log_format: LogFormat = LogFormat.CONSOLE
    log_level: LogLevel = LogLevel.INFO
    max_message_bytes: int = 64 * 1024 * 1024
    profile: str = DEFAULT_PROFILE
    profiles_directory: Path = PROFILES_DIRECTORY
    address_file: Path | None = None
    record_dir: Path | None = None
    record_max_bytes: int = 64 * 1024 * 1024  # a file
    record_max_files: int = 16
    shadow_profile: str | None = None
    report_interval_s: int = 60


def parse_config(arguments: Sequence[str], environment: Mapping[str, str]) -> SchedulerConfig:
    """The settings. A value that cannot be is a usage error: one line on stderr and exit status 2."""
    parser = _parser()
    given: dict[str, Any] = {}
    flags = vars(parser.parse_args(arguments))
    from_environment = [
        part
        for name in flags
        if (value := environment.get(ENVIRONMENT_PREFIX + name.upper())) is not None
        for part in (f"--{name.replace('_', '-')}", value)
    ]
    given |= {name: value for name, value in vars(parser.parse_args(from_environment)).items() if value is not None}
    given |= {name: value for name, value in flags.items() if value is not None}
    tls, insecure = _tls(parser, given), given.pop("insecure", False)
    config = SchedulerConfig(**given, tls=tls)
    if config.tls is None and not (insecure or is_loopback(config.host)):
        parser.error(
            f"argument --host: {config.host} is no loopback address: give --tls-certificate and --tls-key, "
            "or --insecure where the network is to be trusted"
        )
    return config


def _tls(parser: argparse.ArgumentParser, given: dict[str, Any]) -> TlsFiles | None:
    """Take the files out of the settings."""
    certificate, key, client_ca = (given.pop(name, None) for name in ("tls_certificate", "tls_key", "tls_client_ca"))
    if certificate is None and key is None:
        if client_ca is not None:
            parser.error("argument --tls-client-ca: needs --tls-certificate and --tls-key")
        return None
    if certificate is None or key is None:
        parser.error("arguments --tls-certificate and --tls-key need each other")
    return TlsFiles(certificate=certificate, key=key, client_ca=client_ca)


def _parser() -> argparse.ArgumentParser:
    default = SchedulerConfig()
    parser = argparse.ArgumentParser(
        prog="metronome-scheduler",
        description="Plans LLM inference, iteration by iteration, for executors that ask over gRPC.",
        epilog=f"Each flag can be given in the environment too, as in {ENVIRONMENT_PREFIX}PORT=50051.",
        allow_abbrev=False,
    )
    parser.add_argument("--host", help=f"address to listen on (default: {default.host})")
    parser.add_argument("--port", type=_port, help=f"port to listen on; 0: any free one (default: {default.port})")
    parser.add_argument("--tls-certificate", type=Path, help="PEM file: serve with TLS; read again when it changes")
    parser.add_argument("--tls-key", type=Path, help="PEM file with the key of the certificate")
    parser.add_argument("--tls-client-ca", type=Path, help="PEM file: clients must show a certificate that it signed")
    parser.add_argument(
        "--insecure", type=_switch, nargs="?", const=True, help="without TLS also on an address that is no loopback"
    )
    parser.add_argument("--log-format", type=_log_format, help="console or json (default: console)")
    parser.add_argument("--log-level", type=_log_level, help="debug, info, warning or error (default: info)")
    parser.add_argument("--max-message-bytes", type=_positive, help="largest message, in bytes (default: 64 MiB)")
    parser.add_argument("--profile", help=f"policy where a request names none (default: {default.profile})")
    parser.add_argument("--profiles-directory", type=Path, help="directory of profiles (default: the built-in ones)")
    parser.add_argument("--address-file", type=Path, help="file that gets host:port once the service listens")
    parser.add_argument("--record-dir", type=Path, help="record plans there; a directory for this process alone")
    parser.add_argument("--record-max-bytes", type=_positive, help="bytes that end a file (default: 64 MiB)")
    parser.add_argument("--record-max-files", type=_positive, help="files to keep, the newest (default: 16)")
    parser.add_argument("--shadow-profile", help="plan every state under this profile too, and log how the two differ")
    parser.add_argument(
        "--report-interval-s", type=_positive, help="seconds between reports of recorder and shadow (default: 60)"
    )
    return parser


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text.lower() in ("1", "true", "yes", "on")


def _log_format(text: str) -> LogFormat:
    return _one_of(LogFormat, text)


def _log_level(text: str) -> LogLevel:
    return _one_of(LogLevel, text)


def _one_of(choices: type[Choice], text: str) -> Choice:
    try:
        return choices(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(choices)}") from None


def _port(text: str) -> int:
    port = _whole_number(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is no port: 0 to 65535")
    return port


def _positive(text: str) -> int:
    number = _whole_number(text)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 2147483647")
    return number


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
