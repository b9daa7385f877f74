"""A port of loopback, and what is behind it: a server, a void, or nothing at all. The line can be cut."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

_CHUNK_BYTES = 1 << 16
_QUIET_S = 0.03


class Line:
    """Passes bytes to a port and back. `target` None: it takes connections and never says a word.

    `listens` False: nobody is there, and the port stays taken so that nobody else can be.
    """

    def __init__(self, target: int | None, *, listens: bool = True) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._sources: set[socket.socket] = set()  # whom clients hear; of a void, the client's own end
        self._num_bytes = 0  # heard by clients
        self._has_vanished = False
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        if listens:
            self._listener.listen()
            threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection, as a machine that goes away: what was said before still arrives. New ones are taken."""
        self._wait_until_quiet()
        with self._lock:
            sources = list(self._sources)
        for source in sources:
            with suppress(OSError):  # it has ended by itself
                source.shutdown(socket.SHUT_RD)

    def vanish(self) -> None:
        """Pass nothing any more, and end nothing: a cable that is pulled."""
        self._wait_until_quiet()
        self._has_vanished = True

    def close(self) -> None:
        """Cut it, and take no more connections."""
        with suppress(OSError):  # it never listened
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _wait_until_quiet(self) -> None:
        """A server's library writes what it was given a moment later."""
        seen = -1
        while seen != self._num_bytes:
            seen = self._num_bytes
            time.sleep(_QUIET_S)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        if self._target is None:
            self._pass(near, None)
            return
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        threading.Thread(target=self._pass, args=(far, near), daemon=True).start()
        with suppress(OSError):  # it was cut
            while data := near.recv(_CHUNK_BYTES):
                if not self._has_vanished:
                    far.sendall(data)
        _end(far)

    def _pass(self, source: socket.socket, client: socket.socket | None) -> None:
        """What the source says, until it ends or is cut."""
        with self._lock:
            self._sources.add(source)
        with suppress(OSError):  # the client has gone
            while data := source.recv(_CHUNK_BYTES):
                if client is not None and not self._has_vanished:
                    client.sendall(data)
                    self._num_bytes += len(data)
        with self._lock:
            self._sources.remove(source)
        for end in (source, client):
            if end is not None:
                _end(end)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
