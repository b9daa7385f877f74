"""The options that say how to connect: with TLS or without, whom to trust, and who the user is."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click
import grpc

from metronome_cli.command_error import CommandError
from metronome_client import Tls

_PROBE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a client is made with. `files`: where that stands, by `ca`, `certificate`, `key` and `token_file`."""

    tls: Tls | None = None
    token: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)

    def open(self, address: str) -> grpc.Channel:
        """A bare channel, for what no client of ours asks."""
        if self.credentials is None:
            return grpc.insecure_channel(address)
        return grpc.secure_channel(address, self.credentials)

    @property
    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of a channel; None: no TLS."""
        return None if self.tls is None else self.tls.credentials(self.token)

    def towards(self, address: str) -> Trust:
        """This where TLS is spoken at the address, else a plain connection. Raises CommandError where it lacks TLS."""
        if not speaks_tls(address):
            return NO_TLS
        if self.tls is None:
            raise CommandError(f"what listens at {address} wants TLS", "give --tls-ca, or --tls")
        return self


NO_TLS = Trust()


def trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --tls, the files of --tls-* and --token-file, which arrive as one `trust`."""

    @wraps(command)
    def with_trust(
        *arguments: Any,
        tls: bool,
        tls_ca: Path | None,
        tls_certificate: Path | None,
        tls_key: Path | None,
        token_file: Path | None,
        **options: Any,
    ) -> Any:
        if (tls_certificate is None) != (tls_key is None):
            raise click.UsageError("--tls-certificate and --tls-key need each other.")
        if not (tls or tls_ca) and (tls_certificate or token_file):
            raise click.UsageError("--tls-certificate and --token-file are for TLS: give --tls-ca, or --tls.")
        trust = NO_TLS
        if tls or tls_ca:
            files = {"ca": tls_ca, "certificate": tls_certificate, "key": tls_key, "token_file": token_file}
            trust = Trust(
                tls=Tls(
                    root_certificates=_read("--tls-ca", tls_ca),
                    certificate_chain=_read("--tls-certificate", tls_certificate),
                    private_key=_read("--tls-key", tls_key),
                ),
                token=_token(token_file),
                files={name: path for name, path in files.items() if path is not None},
            )
        return command(*arguments, trust=trust, **options)

    for name, what in (
        ("token-file", "Who you are: a file with your token; sent over TLS alone."),
        ("tls-key", "PEM file with the key of that certificate."),
        ("tls-certificate", "PEM file to show to a service that asks for one."),
        ("tls-ca", "Connect with TLS, to who shows a certificate that this PEM file signed."),
    ):
        variable = f"METRONOME_{name.replace('-', '_').upper()}"
        file = click.Path(path_type=Path)
        option = click.option(f"--{name}", metavar="FILE", type=file, envvar=variable, show_envvar=True, help=what)
        with_trust = option(with_trust)
    return click.option("--tls", is_flag=True, help="Connect with TLS, to whom this machine trusts.")(with_trust)


def speaks_tls(address: str) -> bool:
    """Whether who listens there answers a handshake; whose certificate it shows is another question."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):  # ssl's errors are of the first kind, a port that is no number of the second
        return False


def _token(path: Path | None) -> str:
    token = (_read("--token-file", path) or b"").decode("utf-8", "replace").strip()
    if path is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise CommandError(f"--token-file {path} holds no token", "give a file with one word of ASCII characters")
    return token


def _read(flag: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {flag} {path}: {error.strerror}") from None
