"""Keepalive as the wire has it: pings on a connection of its own, for gRPC's libraries send them when they see fit."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from metronome_conformance.wire import Secured

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9
_SETTINGS, _PING, _GOAWAY = 4, 6, 7
_ACK = 1
_ANSWER_S = 10.0


def ping_fault(address: str, secured: Secured | None = None, *, every_s: float, times: int) -> str | None:
    """What a server has against pings, in a sentence; None: it answers them all, and no call is open meanwhile."""
    try:
        with _connection(address, secured) as connection:
            connection.sendall(_PREFACE + _frame(_SETTINGS))
            for number in range(1, times + 1):
                time.sleep(every_s if number > 1 else 0)
                fault = _ping(connection, number)
                if fault is not None:
                    return f"ping {number} of {times}, one each {every_s:g} s: {fault}"
    except OSError as error:
        return f"no connection: {error}"
    return None


@contextmanager
def _connection(address: str, secured: Secured | None) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with socket.create_connection((host, int(port)), timeout=_ANSWER_S) as plain:
        if secured is None:
            yield plain
        else:
            with secured.context.wrap_socket(plain, server_hostname=host) as encrypted:
                yield encrypted


def _ping(connection: socket.socket, number: int) -> str | None:
    content = number.to_bytes(8, "big")
    try:
        connection.sendall(_frame(_PING, content=content))
        while True:
            kind, flags, told = _read(connection)
            if kind == _GOAWAY:
                return f"the server ends the connection: {told[8:].decode(errors='replace') or 'it does not say why'}"
            if kind == _PING and flags & _ACK and told == content:
                return None
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_frame(_SETTINGS, flags=_ACK))
    except (OSError, EOFError) as error:
        return f"the connection broke: {error}"


def _frame(kind: int, *, flags: int = 0, content: bytes = b"") -> bytes:
    return len(content).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + content


def _read(connection: socket.socket) -> tuple[int, int, bytes]:
    header = _exactly(connection, _HEADER_BYTES)
    return header[3], header[4], _exactly(connection, int.from_bytes(header[:3], "big"))


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    content = b""
    while len(content) < num_bytes:
        part = connection.recv(num_bytes - len(content))
        if not part:
            raise EOFError("the server closed it")
        content += part
    return content
