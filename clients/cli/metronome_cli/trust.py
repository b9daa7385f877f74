"""The options that say how to connect: with TLS or without, whom to trust, and who the user is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from metronome_cli.command_error import CommandError
from metronome_client import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What a client is made with."""

    tls: Tls | None = None
    token: str = ""


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
        trust = Trust()
        if tls or tls_ca:
            trust = Trust(
                tls=Tls(
                    root_certificates=_read("--tls-ca", tls_ca),
                    certificate_chain=_read("--tls-certificate", tls_certificate),
                    private_key=_read("--tls-key", tls_key),
                ),
                token=_token(token_file),
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
