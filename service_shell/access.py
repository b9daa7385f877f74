"""Who may call: tokens and certificates, and the tenant that each stands for.

    [tokens]                 # SHA-256 of a token, in hex -> tenant
    "9f86d081884c7d65…" = "acme"

    [certificates]           # a name in a client's certificate: DNS name, URI or common name -> tenant
    "gateway.example" = "*"

`*` stands for every tenant. A token is found by its hash alone. So the file is no secret, and how long the search takes
tells nothing of any token: how far two hashes agree says nothing of how far what was hashed does.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service_shell.watched_file import WatchedFile

EVERY_TENANT = "*"

_BEARER = "bearer "
_NAMES = ("x509_subject_alternative_name", "x509_common_name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """For whom somebody may act."""

    tenant: str

    @property
    def is_operator(self) -> bool:
        """Acts for every tenant, and for the service itself."""
        return self.tenant == EVERY_TENANT

    def may_act_for(self, tenant: str) -> bool:
        return self.is_operator or tenant == self.tenant


ANYBODY = Caller(tenant=EVERY_TENANT)
"""Who calls a service that was not told whom to let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Those who are let in, by the SHA-256 of their token, and by a name in their certificate."""

    by_token: Mapping[bytes, Caller]
    by_certificate: Mapping[str, Caller]


class Access:
    """Says who calls, by a file that may change meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises FileError."""
        self._file = WatchedFile("--access-file", path, parse_access)

    def caller(self, context: Any) -> Caller | None:
        """None: nobody who is let in. `context`: of a call, as gRPC gives it.

        A token counts before a certificate, so a wrong one is refused whatever certificate comes with it.
        """
        known = self._file.contents
        token = _token(context.invocation_metadata() or ())
        if token is not None:
            return known.by_token.get(hashlib.sha256(token).digest())
        names = _certificate_names(context.auth_context())
        return next((known.by_certificate[name] for name in names if name in known.by_certificate), None)


def parse_access(text: str) -> Known:
    """Raises ValueError that tells the place of what is wrong, and nothing that might be a token."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"is no TOML: {error}") from None
    if unknown := set(tables) - {"tokens", "certificates"}:
        raise ValueError(f"has {sorted(unknown)[0]!r}, which is neither [tokens] nor [certificates]")
    by_token = {_digest(key, at): caller for at, key, caller in _callers(tables, "tokens")}
    by_certificate = {key: caller for _, key, caller in _callers(tables, "certificates")}
    if not by_token and not by_certificate:
        raise ValueError("lets nobody in")
    return Known(by_token=by_token, by_certificate=by_certificate)


def _callers(tables: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, Caller]]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"has {name!r}, which is no table")
    for number, (key, tenant) in enumerate(table.items(), start=1):
        at = f"entry {number} of [{name}]"
        if not isinstance(tenant, str) or not tenant:
            raise ValueError(f"has {at} without the name of a tenant")
        yield at, key, Caller(tenant=tenant)


def _digest(key: str, at: str) -> bytes:
    try:
        digest = bytes.fromhex(key)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"has {at}, whose key is not the SHA-256 of a token in 64 hexadecimal digits")
    return digest


def _token(metadata: Any) -> bytes | None:
    """What was sent as `authorization: Bearer <token>`; of another scheme nothing is left, which is no token."""
    for key, value in metadata:
        if key == "authorization":
            text = value if isinstance(value, str) else value.decode("latin-1")
            return text[len(_BEARER) :].strip().encode() if text.lower().startswith(_BEARER) else b""
    return None


def _certificate_names(auth_context: Mapping[str, Any]) -> Iterator[str]:
    """Of the certificate that was verified at the handshake; none, where none was asked for."""
    for field in _NAMES:
        for name in auth_context.get(field, ()):
            yield name.decode("utf-8", "replace")
