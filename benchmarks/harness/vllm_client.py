"""Streams jobs from a vLLM server: run with the Python of an environment that has vLLM, and nothing of ours.

On stdin one JSON object: {"url": ..., "jobs": [{"prompt_token_ids": [...], "num_output_tokens": n, "at_s": t}, ...]}.
Each job is sent at its time, greedy, to its full length. On stdout one JSON list: for each job the second at which it
was sent, then those of its tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp

DATA, DONE = b"data: ", b"data: [DONE]"


async def main() -> None:
    task = json.load(sys.stdin)
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(task["url"], connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        started = time.perf_counter()
        times = await asyncio.gather(*(_stream(session, job, started) for job in task["jobs"]))
    json.dump(times, sys.stdout)


async def _stream(session: aiohttp.ClientSession, job: dict[str, Any], started: float) -> list[float]:
    body = {
        "model": "model",
        "prompt": job["prompt_token_ids"],
        "max_tokens": job["num_output_tokens"],
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    await asyncio.sleep(max(0.0, job["at_s"] - (time.perf_counter() - started)))
    times = [time.perf_counter() - started]
    async with session.post("/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {await response.text()}")
        async for line in response.content:
            if not line.startswith(DATA) or line.startswith(DONE):
                continue
            now = time.perf_counter() - started
            for choice in json.loads(line[len(DATA) :])["choices"]:
                times.extend([now] * len(choice["token_ids"] or ()))
    if len(times) != 1 + job["num_output_tokens"]:
        raise RuntimeError(f"{len(times) - 1} tokens instead of {job['num_output_tokens']}")
    return times


if __name__ == "__main__":
    asyncio.run(main())
