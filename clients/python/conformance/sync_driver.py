"""Lets the conformance kit use the client for threads: `metronome conformance client 'python THIS'`.

It reads one JSON object a line from stdin and writes one a line to stdout; clients/conformance/README.md has the
protocol. The kit does all the judging.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import told

from metronome_client import InferenceClient, SchedulerClient


class Driver:
    """One client of each kind at a time; each call is in a thread of its own."""

    def __init__(self) -> None:
        self._clients: tuple[Any, ...] = ()

    def take(self, order: dict[str, Any]) -> None:
        """Do as a line says."""
        if "client" in order:
            told.say({"id": order["id"], "end": told.end(self._make(order["client"]))})
        else:
            threading.Thread(target=self._use, args=(order, self._clients), daemon=True).start()

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()
        self._clients = ()

    def _make(self, content: dict[str, Any]) -> Exception | None:
        self.close()
        try:
            settings = told.settings_from(content)
            self._clients = (InferenceClient(**settings), SchedulerClient(**settings))
        except told.REFUSED as error:
            return error
        return None

    def _use(self, order: dict[str, Any], clients: tuple[Any, ...]) -> None:
        id, verb, error = order["id"], order["use"], None
        method = getattr(clients[verb in told.SCHEDULER_VERBS], verb)
        try:
            positional, named = told.arguments_from(verb, order["with"])
            if verb in told.STREAMS:
                stream = method(*positional, **named)
                for number, content in enumerate(stream, start=1):
                    told.say({"id": id, "message": told.message(content)})
                    if number == order.get("leave_after"):
                        break
                stream.close()
            else:
                told.say({"id": id, "message": {"result": told.result(verb, method(*positional, **named))}})
        except Exception as caught:
            error = caught
        told.say({"id": id, "end": told.end(error)})


driver = Driver()
for line in sys.stdin:
    driver.take(json.loads(line))
driver.close()
