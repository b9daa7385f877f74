"""A driver in another language: a program that makes the kit's calls through its own stubs or client.

It reads JSON from stdin and writes JSON to stdout, one object a line; clients/conformance/README.md has the protocol.
The kit does all the judging, so a driver is a page of code.
"""

from __future__ import annotations

import base64
import itertools
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from metronome_conformance.wire import DEFAULT_TIMEOUT_S, Json, Outcome, as_json, method_named, refusal_from

# How much later than its deadline a call may end before the driver is taken to hang.
SLACK_S = 10.0


class DriverError(Exception):
    """The driver does not keep its protocol, or has ended."""


class ProcessDriver:
    """Starts the program, and ends it with `close`. `address`: whom it calls."""

    def __init__(self, command: Sequence[str], address: str = "") -> None:
        self.address = address
        self._ids = itertools.count(1)
        self._inboxes: dict[int, queue.Queue[Json | None]] = {}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", bufsize=1
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, method: str, request: Any, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ProcessCall:
        """As `Driver.start`."""
        content: dict[str, Any] = {"bytes": base64.b64encode(request).decode()} if isinstance(request, bytes) else {}
        if not content:
            content = {"requests": request if isinstance(request, list) else [request]}
        service = method_named(method).containing_service.full_name
        order = {"start": f"{service}/{method.partition('/')[2]}", "address": self.address, **content}
        return self.ask(
            order, timeout_s=timeout_s, answer=message_factory.GetMessageClass(method_named(method).output_type)
        )

    def ask(self, order: Mapping[str, Any], *, timeout_s: float, answer: type[Message] | None = None) -> ProcessCall:
        """Give an order that is answered like a call. `answer`: what its messages are; None: just JSON."""
        id = next(self._ids)
        self._inboxes[id] = queue.Queue()
        self.send({"id": id, "timeout_s": timeout_s, **order})
        return ProcessCall(self, id, self._inboxes[id], timeout_s, answer)

    def send(self, line: Mapping[str, Any]) -> None:
        """Raises DriverError where the program has ended."""
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
            except OSError as error:
                raise DriverError(f"the driver has ended: {error}") from None

    def close(self) -> None:
        """End the program: first by the end of its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=SLACK_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                content = json.loads(line)
                self._inboxes[content["id"]].put(content)
            except (ValueError, KeyError, TypeError):
                continue  # not of the protocol: a word of the program's own
        for inbox in self._inboxes.values():
            inbox.put(None)


class ProcessCall:
    """A call of the program."""

    def __init__(
        self,
        driver: ProcessDriver,
        id: int,
        inbox: queue.Queue[Json | None],
        timeout_s: float,
        answer: type[Message] | None,
    ) -> None:
        self._driver, self._id, self._inbox, self._timeout_s = driver, id, inbox, timeout_s
        self._answer = answer
        self.messages: list[Json] = []
        self.end: Json | None = None

    def next_message(self) -> Json | None:
        """As `Call.next_message`. Raises DriverError."""
        if self.end is not None:
            return None
        try:
            content = self._inbox.get(timeout=self._timeout_s + SLACK_S)
        except queue.Empty:
            raise DriverError(f"the driver hangs: no end {SLACK_S:.0f} s after the deadline") from None
        if content is None:
            raise DriverError("the driver has ended in the midst of a call")
        if "end" in content:
            self.end = content["end"]
            return None
        message: Json = content["message"]
        if self._answer is not None:  # either spelling of names is JSON of protobuf
            message = as_json(json_format.ParseDict(message, self._answer()))
        self.messages.append(message)
        return message

    def outcome(self) -> Outcome:
        """As `Call.outcome`. Raises DriverError."""
        while self.next_message() is not None:
            pass
        end = self.end or {}
        details = base64.b64decode(end.get("details", ""))
        return Outcome(
            code=end["code"], messages=tuple(self.messages), refusal=refusal_from(end.get("message", ""), details)
        )

    def cancel(self) -> None:
        """As `Call.cancel`."""
        if self.end is None:
            self._driver.send({"id": self._id, "cancel": True})
