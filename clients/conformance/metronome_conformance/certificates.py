"""Certificates that a client must trust, and such that it must not."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import grpc

KINDS = {"trusted": "localhost", "another name": "another.test", "stranger": "localhost"}


class NoCertificatesError(Exception):
    """The package that makes them is not installed."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """`root`: PEM of the authority that clients are told to trust; `servers`: credentials by kind (`KINDS`)."""

    root: str
    servers: dict[str, grpc.ServerCredentials]


@functools.cache
def certificates() -> Certificates:
    """Made once for all scenarios. Raises NoCertificatesError."""
    try:
        import trustme
    except ImportError:
        raise NoCertificatesError("the kit has no trustme to make certificates with") from None
    authority, stranger = trustme.CA(), trustme.CA()
    servers = {}
    for kind, host in KINDS.items():
        issued = (stranger if kind == "stranger" else authority).issue_cert(host)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        servers[kind] = grpc.ssl_server_credentials([(issued.private_key_pem.bytes(), chain)])
    return Certificates(authority.cert_pem.bytes().decode(), servers)
