"""The same as sync_driver.py for the client for asyncio."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import Any

import told

from metronome_client import AsyncInferenceClient, AsyncSchedulerClient


class Driver:
    """One client of each kind at a time; each call is a task of its own."""

    def __init__(self) -> None:
        self._clients: tuple[Any, ...] = ()
        self._calls: set[asyncio.Task[None]] = set()

    async def take(self, order: dict[str, Any]) -> None:
        """Do as a line says."""
        if "client" in order:
            told.say({"id": order["id"], "end": told.end(await self._make(order["client"]))})
        else:
            call = asyncio.create_task(self._use(order, self._clients))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            await client.close()
        self._clients = ()

    async def _make(self, content: dict[str, Any]) -> Exception | None:
        await self.close()
        try:
            settings = told.settings_from(content)
            self._clients = (AsyncInferenceClient(**settings), AsyncSchedulerClient(**settings))
        except told.REFUSED as error:
            return error
        return None

    async def _use(self, order: dict[str, Any], clients: tuple[Any, ...]) -> None:
        id, verb, error = order["id"], order["use"], None
        method = getattr(clients[verb in told.SCHEDULER_VERBS], verb)
        try:
            positional, named = told.arguments_from(verb, order["with"])
            if verb in told.STREAMS:
                async with aclosing(method(*positional, **named)) as stream:
                    number = 0
                    async for content in stream:
                        told.say({"id": id, "message": told.message(content)})
                        number += 1
                        if number == order.get("leave_after"):
                            break
            else:
                told.say({"id": id, "message": {"result": told.result(verb, await method(*positional, **named))}})
        except Exception as caught:
            error = caught
        told.say({"id": id, "end": told.end(error)})


async def main() -> None:
    """Take line after line until there are no more."""
    driver = Driver()
    while line := await asyncio.to_thread(sys.stdin.readline):
        await driver.take(json.loads(line))
    await driver.close()


asyncio.run(main())
