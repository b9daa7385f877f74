"""TLS of the port that a service listens on, from PEM files that are read again when they change.

Before each handshake it is looked whether they did, so a renewed certificate counts from the next connection on, and
open connections go on. Files that cannot be used are logged once, and those in use stay.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import structlog

log = structlog.get_logger()

# Of each file: when it was written, and how long it is.
_Signature: TypeAlias = tuple[tuple[int, int], ...]


class TlsError(Exception):
    """Nobody could be served with these files. The text says why, and names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """`certificate`: with its chain. `client_ca` None: clients show no certificate; else one that it signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Raises TlsError where the files cannot be read, or do not belong together."""
    reader = _Reader(files)
    return grpc.dynamic_ssl_server_credentials(
        reader.in_use, reader.changed, require_client_authentication=files.client_ca is not None
    )


class _Reader:
    """Reads the files. `changed` is called by gRPC, on a thread of its own, before each handshake."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._signature = self._sign()
        self.in_use = self._read()

    def changed(self) -> Any:
        """The configuration to use from now on; None: the one in use."""
        try:
            signature = self._sign()
            if signature == self._signature:
                return None
            self._signature = signature
            self.in_use = self._read()
        except TlsError as error:
            log.warning("tls_files_refused", error=str(error))
            return None
        log.info("tls_files_reloaded", certificate=str(self._files.certificate))
        return self.in_use

    def _named(self) -> list[tuple[str, Path]]:
        named = [("--tls-certificate", self._files.certificate), ("--tls-key", self._files.key)]
        return named if self._files.client_ca is None else [*named, ("--tls-client-ca", self._files.client_ca)]

    def _sign(self) -> _Signature:
        signature = []
        for flag, path in self._named():
            try:
                status = path.stat()
            except OSError as error:
                raise TlsError(f"cannot read {flag} {path}: {error.strerror}") from error
            signature.append((status.st_mtime_ns, status.st_size))
        return tuple(signature)

    def _read(self) -> Any:
        files = self._files
        contents = {}
        for flag, path in self._named():
            try:
                contents[flag] = path.read_bytes()
            except OSError as error:
                raise TlsError(f"cannot read {flag} {path}: {error.strerror}") from error
        # gRPC would say nothing of files that are none, or do not belong together, but fail every handshake.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(files.certificate, files.key, password=no_password)
        except (ssl.SSLError, ValueError) as error:
            text = f"--tls-certificate {files.certificate} and --tls-key {files.key} are no certificate and its key"
            raise TlsError(f"{text}: {reason(error)}") from error
        if files.client_ca is not None:
            try:
                context.load_verify_locations(files.client_ca)
            except (ssl.SSLError, ValueError) as error:
                raise TlsError(f"--tls-client-ca {files.client_ca} holds no certificate: {reason(error)}") from error
        return grpc.ssl_server_certificate_configuration(
            [(contents["--tls-key"], contents["--tls-certificate"])],
            root_certificates=contents.get("--tls-client-ca"),
        )


def no_password() -> str:
    """Answers OpenSSL's question for the password of a key."""
    raise ValueError("the key is encrypted, and nobody is there to be asked for its password")


def reason(error: Exception) -> str:
    """The words of OpenSSL, which has names for its errors: KEY_VALUES_MISMATCH."""
    name = getattr(error, "reason", None)
    return name.lower().replace("_", " ") if isinstance(name, str) else str(error)
