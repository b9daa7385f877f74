"""Where a service listens: the address as text, whether it can be had, and the file that tells it to others."""

from __future__ import annotations

import errno
import ipaddress
import socket
from pathlib import Path

import grpc


class AddressError(Exception):
    """The service cannot listen where it was told to, or cannot say where it does. The text says what to do."""


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address. A name says nothing, but for `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> str:
    """Have a server listen, without TLS where there are no credentials; gives the address that was bound.

    Raises AddressError.
    """
    check_free(host, port)
    try:
        if credentials is None:
            return join(host, server.add_insecure_port(join(host, port)))
        return join(host, server.add_secure_port(join(host, port), credentials))
    except RuntimeError as error:
        raise AddressError(f"cannot listen on {join(host, port)}") from error


def check_free(host: str, port: int) -> None:
    """Raises AddressError with the reason if nobody can listen there; gRPC itself would write a log and not say why."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressError(f"port {port} on {host} is taken; choose another with --port") from error
        text = f"cannot listen on {join(host, port)}: {error.strerror}; choose another address with --host"
        raise AddressError(text) from error


def publish(address: str, path: Path) -> None:
    """Write the address to a file, so that whoever reads it sees all of it or none. Raises AddressError."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        scratch.write_text(address + "\n", encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise AddressError(f"cannot write --address-file {path}: {error.strerror}") from error
