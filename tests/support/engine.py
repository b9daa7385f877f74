"""A real engine that steps when it is told to, with all that it tells gathered, on a device of the test's choice."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Sequence as AbstractSequence
from dataclasses import replace
from typing import Any

import numpy as np

from executor_service.engine.apply import PlanRefusedError, RefusalReason
from executor_service.engine.books import Books, Status
from executor_service.engine.device import KVCopier, Runner
from executor_service.engine.limits import Limits
from executor_service.engine.loop import Engine
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.planner import Planner, PlanUnavailableError
from executor_service.engine.planning import Overlap
from executor_service.engine.record import Ending, Measures, PassRecord
from executor_service.engine.request import (
    EndedEvent,
    Event,
    FinishedEvent,
    OutputOptions,
    Request,
    Sampling,
    Stopping,
    TokensEvent,
)
from executor_service.engine.sequence import Detokenizer, Sequence
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.batch import RaggedBatch
from executor_service.model.loaded import LoadedModel
from executor_service.model.runner import ExecuteResult, ModelRunner
from executor_service.sampling.sampler import SamplingBatch
from executor_service.text.stop import StopMatcher
from support.planners import LocalPlanner
from support.token_runner import TokenCache, TokenRunner

GREEDY = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0)
MAX_STEPS = 2000


def limits_of(**sizes: Any) -> Limits:
    """Eight blocks of 16 tokens, eight places and a budget of 64 tokens, unless said."""
    defaults: dict[str, Any] = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "block_size": 16,
        "num_blocks": 8,
        "num_swap_blocks": 0,
        "max_model_len": 512,
        "max_num_waiting": None,
    }
    return Limits(**(defaults | sizes))


class Spelling:
    """A detokenizer by a table; a token that is not in it spells nothing."""

    def __init__(self, table: dict[int, str] | None = None) -> None:
        self._table = table or {}

    def push(self, token_ids: AbstractSequence[int]) -> str:
        return "".join(self._table.get(token_id, "") for token_id in token_ids)

    def flush(self) -> str:
        return ""


def request_of(id: int, prompt: AbstractSequence[int], new: int, **fields: Any) -> Request:
    """A greedy request without an end token, unless said. ``stop`` and ``stop_token_ids`` say when it ends."""
    stopping = Stopping(
        max_output_tokens=new,
        stop_strings=tuple(fields.pop("stop", ())),
        stop_token_ids=frozenset(fields.pop("stop_token_ids", ())),
        min_output_tokens=fields.pop("min_new", 0),
    )
    defaults: dict[str, Any] = {
        "name": f"request-{id}",
        "sampling": GREEDY,
        "output": OutputOptions(),
        "priority": 0,
        "tenant": "",
        "expected_output_tokens": 0,
        "arrival_time_us": id,
        "deadline_us": 0,
    }
    tokens = np.array(prompt, dtype=np.int32)
    return Request(id=id, prompt_token_ids=tokens, stopping=stopping, **(defaults | fields))


def sequence_of(id: int, prompt: AbstractSequence[int], new: int, **fields: Any) -> Sequence:
    detokenizer: Detokenizer = fields.pop("detokenizer", None) or Spelling()
    request = request_of(id, prompt, new, **fields)
    stop_strings = StopMatcher(request.stopping.stop_strings)
    return Sequence(request, detokenizer=detokenizer, stop_strings=stop_strings)


class Heard:
    """An observer that keeps what it hears."""

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []
        self.measures: list[Measures] = []
        self.endings: list[Ending] = []
        self.refusals: list[str] = []
        self.refusal_reasons: list[RefusalReason] = []
        self.outages: list[str] = []
        self.failures: list[tuple[list[str], Exception]] = []
        self.failed_copies: list[list[str]] = []

    def pass_done(self, record: PassRecord, measures: Measures) -> None:
        self.passes.append(record)
        self.measures.append(measures)

    def request_ended(self, ending: Ending) -> None:
        self.endings.append(ending)

    def plan_refused(self, iteration: int, refusal: PlanRefusedError) -> None:
        self.refusals.append(str(refusal))
        self.refusal_reasons.append(refusal.reason)

    def plan_unavailable(self, iteration: int, failure: PlanUnavailableError) -> None:
        self.outages.append(str(failure))

    def copies_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        self.failed_copies.append(request_ids)

    def requests_failed(self, iteration: int, request_ids: list[str], error: Exception) -> None:
        self.failures.append((request_ids, error))

    def books_wrong(self, iteration: int, error: Exception) -> None:
        raise error


class WatchedRunner:
    """Notes the blocks that passes write although others hold them, or may find what stood there."""

    def __init__(self, runner: Runner, block_size: int) -> None:
        self._runner = runner
        self._block_size = block_size
        self.books: Books | None = None
        self.wrongly_written: list[int] = []

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        assert self.books is not None
        slots = np.sort(batch.slot_mapping(self._block_size))
        written, first = np.unique(slots // self._block_size, return_index=True)
        found = self.books.prefixes.cache.num_found_tokens(written)
        is_shared = self.books.block_pool.reference_counts(written) != 1
        wrong = is_shared | (slots[first] % self._block_size < found)
        self.wrongly_written += written[wrong].tolist()
        return self._runner.execute(batch, sampling)


class EngineUnderTest:
    """Checks after every step the integrity of the books, and that no pass wrote a block that is not its request's own;
    and that nothing is told of a request that has ended.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        runner: Runner,
        kv: KVCopier,
        planner: Planner | None = None,
        overlap: Overlap = Overlap.ON,
        prefix_scope: PrefixScope = PrefixScope.TENANT,
        lookup: NgramLookup = NO_LOOKUP,
    ) -> None:
        self.limits = limits
        self._runner = WatchedRunner(runner, limits.block_size)
        self.planner = planner or LocalPlanner()
        self.heard = Heard()
        self.events: dict[int, list[Event]] = defaultdict(list)
        self._ids = itertools.count(1)
        self.engine = Engine(
            limits=limits,
            runner=self._runner,
            kv=kv,
            planner=self.planner,
            overlap=overlap,
            prefix_scope=prefix_scope,
            lookup=lookup,
            sink=self._hear,
            observer=self.heard,
        )
        self._runner.books = self.books

    @property
    def books(self) -> Books:
        return self.engine.books

    @property
    def num_held_blocks(self) -> int:
        return self.limits.num_blocks - self.books.block_pool.num_free

    def submit(self, prompt: AbstractSequence[int], new: int, **fields: Any) -> int:
        """Queue a request and give its id; the queue is in the order of ids."""
        request_id = next(self._ids)
        self.engine.submit(sequence_of(request_id, prompt, new, **fields))
        return request_id

    def submit_samples(
        self, prompt: AbstractSequence[int], new: int, count: int, sampling: Sampling = GREEDY
    ) -> list[int]:
        """Queue requests for several answers to one prompt, as they come of one call, each with a seed of its own."""
        ids = [next(self._ids) for _ in range(count)]
        seeded = (replace(sampling, seed=sampling.seed + place) for place in range(count))
        self.engine.submit(
            *(sequence_of(i, prompt, new, samples_of=ids[0], sampling=s) for i, s in zip(ids, seeded, strict=True))
        )
        return ids

    def step(self) -> bool:
        ran = self.engine.step()
        self.books.check_integrity()
        assert self._runner.wrongly_written == []
        assert self.books.iteration == self.engine.counters.num_iterations + 1
        return ran

    def run(self) -> None:
        """Step until nobody is left. A pass that runs nothing while somebody is left is a failure."""
        self.step()
        for _ in range(MAX_STEPS):
            if not len(self.books):
                assert self.is_empty
                return
            assert self.step() or not len(self.books), f"iteration {self.books.iteration - 1} ran nothing"
        raise AssertionError(f"{sorted(self.books['id'][self.books.rows()].tolist())} do not end")

    def step_until_tokens(self, request_id: int, count: int) -> None:
        """Step until a request has at least so many output tokens."""
        for _ in range(MAX_STEPS):
            if len(self.tokens(request_id)) >= count:
                return
            self.step()
        raise AssertionError(f"request {request_id} does not get {count} tokens")

    @property
    def is_empty(self) -> bool:
        """Nobody is left, and every block is free."""
        books = self.books
        num_free, num_free_swap = books.block_pool.num_free, books.swap_space.num_free
        return (len(books), num_free, num_free_swap) == (0, self.limits.num_blocks, self.limits.num_swap_blocks)

    def status(self, request_id: int) -> Status:
        row = int(self.books.rows_of([request_id])[0])
        assert row >= 0, f"request {request_id} is not in the books"
        return Status(self.books["status"][row])

    def tokens(self, request_id: int) -> list[int]:
        tokens = (event.token_ids for event in self.events[request_id] if isinstance(event, TokensEvent))
        return list(itertools.chain.from_iterable(tokens))

    def text(self, request_id: int) -> str:
        return "".join(event.text for event in self.events[request_id] if isinstance(event, TokensEvent))

    def ending(self, request_id: int) -> FinishedEvent | EndedEvent:
        """How the request ended."""
        last = self.events[request_id][-1]
        assert not isinstance(last, TokensEvent), f"request {request_id} has not ended"
        return last

    def finish(self, request_id: int) -> FinishedEvent:
        ending = self.ending(request_id)
        assert isinstance(ending, FinishedEvent), ending
        return ending

    def end(self, request_id: int) -> EndedEvent:
        ending = self.ending(request_id)
        assert isinstance(ending, EndedEvent), ending
        return ending

    def _hear(self, events: list[Event]) -> None:
        for event in events:
            heard = self.events[event.request_id]
            assert not heard or isinstance(heard[-1], TokensEvent), f"{event} after the end"
            heard.append(event)


def engine_on_model(loaded: LoadedModel, limits: Limits, **parts: Any) -> EngineUnderTest:
    """An engine over a real model and a real cache."""
    spec = KVCacheSpec.from_config(loaded.config, block_size=limits.block_size, dtype=loaded.dtype)
    cache = KVCache(spec, num_blocks=limits.num_blocks, num_swap_blocks=limits.num_swap_blocks)
    device: dict[str, Any] = {"runner": ModelRunner(loaded, cache), "kv": cache}
    return EngineUnderTest(limits=limits, **(device | parts))


def engine_on_tokens(limits: Limits, **parts: Any) -> EngineUnderTest:
    """An engine over a device that knows no model: see token_runner.py."""
    cache = TokenCache(
        num_blocks=limits.num_blocks, num_swap_blocks=limits.num_swap_blocks, block_size=limits.block_size
    )
    device: dict[str, Any] = {"runner": TokenRunner(cache), "kv": cache}
    return EngineUnderTest(limits=limits, **(device | parts))


def deadline_in(seconds: float) -> int:
    """A deadline as the engine's clock counts it; one in the past for negative seconds."""
    return time.time_ns() // 1000 + int(seconds * 1e6)
