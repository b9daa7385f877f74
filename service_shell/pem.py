"""PEM files: each read once, and what was read is checked and handed on.

gRPC would say nothing of files that are none, that do not belong together or that have expired, but fail every
handshake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

Parsed = TypeVar("Parsed")


class TlsError(Exception):
    """Nobody could be talked to with these files. The text says why, and names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PemFile:
    """Where one is, and the flag that says so."""

    flag: str
    path: Path

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate with its chain, and its key, as PEM. `expires`: when the first of the chain to expire does."""

    certificate_chain: bytes
    key: bytes
    expires: datetime


def read_identity(certificate: PemFile, key: PemFile) -> Identity:
    """Raises TlsError."""
    chain_pem, key_pem = _read(certificate), _read(key)
    chain = _parse(certificate, "holds no certificate", lambda: x509.load_pem_x509_certificates(chain_pem))
    private_key = _parse(key, "holds no key that is not encrypted", lambda: load_pem_private_key(key_pem, None))
    public_key = _parse(certificate, "has a public key of an unknown kind", lambda: chain[0].public_key())
    if public_key != private_key.public_key():
        raise TlsError(f"{certificate} and {key} do not belong together")
    expires = min(one.not_valid_after_utc for one in chain)
    if expires <= datetime.now(UTC):
        raise TlsError(f"{certificate} expired at {expires:%Y-%m-%d %H:%M:%S} UTC")
    return Identity(certificate_chain=chain_pem, key=key_pem, expires=expires)


def read_authorities(file: PemFile) -> bytes:
    """One or more certificates, as PEM. Raises TlsError."""
    pem = _read(file)
    _parse(file, "holds no certificate", lambda: x509.load_pem_x509_certificates(pem))
    return pem


def _read(file: PemFile) -> bytes:
    try:
        return file.path.read_bytes()
    except OSError as error:
        raise TlsError(f"cannot read {file}: {error.strerror}") from error


def _parse(file: PemFile, failure: str, parse: Callable[[], Parsed]) -> Parsed:
    """What the library says of a file that is wrong is pages long, and quotes it."""
    try:
        return parse()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: a key that wants a password
        raise TlsError(f"{file} {failure}") from error
