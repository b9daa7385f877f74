"""A day at an overloaded service, in minutes: what the dashboards of docs/operations.md show.

Three tenants. `chat` goes on with its conversations, `search` asks short questions and sometimes leaves, `crawler`
comes with all it has for a while, and gives up what takes too long. Meanwhile one scheduler dies, and later both.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

from metronome.scheduler.v1 import scheduler_pb2, state_pb2
from metronome_cli.run.workload import load_prompts
from metronome_client import AsyncInferenceClient, AsyncSchedulerClient, Delta, GenerateOptions, MetronomeError
from watched_stack import WatchedStack

# As shares of the day.
CRAWL = (0.22, 0.5)
ONE_DIES = (0.6, 0.66)
BOTH_DIE = (0.76, 0.81)

PROFILE = """\
description = "People before crawlers, who may be evicted for them, and whose queue is short."
[policy]
ordering = "PRIORITY"
aging_seconds = 30.0
admission = "WATERMARK"
watermark = 0.0
preemption = "FOR_PRIORITY"
victim = "CHEAPEST"
eviction = "AUTO"
chunk_size_tokens = 128
max_num_waiting_per_tenant = 6
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Users who each ask, wait for the answer, think, and ask again. `leaves`: share of answers not read to the end."""

    name: str
    num_users: int
    priority: int
    mean_pause_s: float
    max_tokens: int
    prompt_characters: int
    is_conversation: bool = False
    leaves: float = 0.0
    patience_s: float = 120.0


PEOPLE = (
    Tenant(
        name="chat",
        num_users=4,
        priority=1,
        mean_pause_s=4.0,
        max_tokens=60,
        prompt_characters=500,
        is_conversation=True,
    ),
    Tenant(name="search", num_users=4, priority=1, mean_pause_s=3.0, max_tokens=24, prompt_characters=250, leaves=0.15),
)
CRAWLER = Tenant(
    name="crawler",
    num_users=28,
    priority=0,
    mean_pause_s=1.0,
    max_tokens=90,
    prompt_characters=900,
    patience_s=40.0,
)
_LONGEST_CONVERSATION = 2_400  # characters


async def live_through(stack: WatchedStack, length_s: float) -> None:
    """Until the day is over."""
    began = time.monotonic()

    async def until(share: float) -> None:
        await asyncio.sleep(max(0.0, began + share * length_s - time.monotonic()))

    async with AsyncInferenceClient([one.address for one in stack.executors], timeout_s=30) as client:
        people = [asyncio.create_task(_use(client, tenant, n)) for tenant in PEOPLE for n in range(tenant.num_users)]
        await until(CRAWL[0])
        crawlers = [asyncio.create_task(_use(client, CRAWLER, n)) for n in range(CRAWLER.num_users)]
        await _ask_for_what_is_not_there(stack.schedulers[0].address)
        await until(CRAWL[1])
        await _end(crawlers)
        for (dies, is_back), schedulers in ((ONE_DIES, stack.schedulers[:1]), (BOTH_DIE, stack.schedulers)):
            await until(dies)
            for scheduler in schedulers:
                scheduler.kill()
            await until(is_back)
            await asyncio.gather(*(asyncio.to_thread(scheduler.start) for scheduler in schedulers))
        await until(1.0)
        await _end(people)


async def _end(users: list[asyncio.Task[None]]) -> None:
    for user in users:
        user.cancel()
    await asyncio.gather(*users, return_exceptions=True)


async def _use(client: AsyncInferenceClient, tenant: Tenant, number: int) -> None:
    draw = random.Random(f"{tenant.name} {number}")
    texts = list(load_prompts(None).values())
    said = ""
    while True:
        await asyncio.sleep(draw.expovariate(1 / tenant.mean_pause_s))
        if not tenant.is_conversation or len(said) > _LONGEST_CONVERSATION:
            said = ""
        text = draw.choice(texts)
        start = draw.randrange(max(1, len(text) - tenant.prompt_characters))
        prompt = f"{said}\n{text[start : start + tenant.prompt_characters]}"
        with suppress(MetronomeError):  # who is turned away, or gives up, comes again
            said = prompt + await _answer(client, tenant, prompt, draw)


async def _answer(client: AsyncInferenceClient, tenant: Tenant, prompt: str, draw: random.Random) -> str:
    options = GenerateOptions(
        max_tokens=draw.randint(tenant.max_tokens // 2, tenant.max_tokens),
        temperature=0.0,
        tenant=tenant.name,
        priority=tenant.priority,
    )
    leaves, text = draw.random() < tenant.leaves, ""
    async with aclosing(client.generate(prompt, options, timeout_s=tenant.patience_s)) as events:
        async for event in events:
            text += event.text if isinstance(event, Delta) else ""
            if leaves and text:
                break
    return text


async def _ask_for_what_is_not_there(scheduler: str) -> None:
    """An operator mistypes the name of a profile."""
    request = scheduler_pb2.PlanRequest(state=state_pb2.ClusterState(), profile="pepole-first")
    async with AsyncSchedulerClient(scheduler) as client:
        for _ in range(3):
            with suppress(MetronomeError):
                await client.plan(request)
            await asyncio.sleep(1)


def write_profiles(directory: Path) -> Path:
    """A directory with the profile of the day, and FIFO as its shadow."""
    import scheduler_service

    built_in = Path(scheduler_service.__file__).parent / "profiles"
    directory.mkdir()
    (directory / "people-first.toml").write_text(PROFILE, encoding="utf-8")
    (directory / "fifo.toml").write_text((built_in / "fifo.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return directory
