"""One forward pass: a ragged batch in, the next token of each row out. `torch.inference_mode` is here alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kv.cache import KVCache
from executor_service.model.attention import PagedContext
from executor_service.model.attention_varlen import serves_varlen
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.greedy_head import GreedyHead
from executor_service.model.loaded import LoadedModel
from executor_service.model.transfer import to_device
from executor_service.sampling.logprobs import Logprobs, logprobs_of
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch, checked, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteResult:
    """One entry for each row of the sampling batch, which are the first of the batch's `logits_rows`."""

    next_token_ids: NDArray[np.int64]  # [S]; NOT_SAMPLED or NOTHING_ALLOWED where there is none
    non_finite: NDArray[np.bool_]  # [S] whether the row had a NaN or an infinity, so that nothing could be sampled
    logprobs: Logprobs | None = None  # of those of the [S + P] `logits_rows` that ask for them; None: nobody does
    sample_us: int = 0  # from hidden states, or logits, to tokens on the host; on CUDA with the rest of the pass


class ModelRunner:
    """Runs passes of one model over one KV cache."""

    def __init__(self, loaded: LoadedModel, kv_cache: KVCache, *, by_varlen: bool = False) -> None:
        """``by_varlen``: `attention_varlen.py` serves this model on this device."""
        self._model = loaded.model
        self._device = loaded.device
        self._kv_cache = kv_cache
        self._kernels = loaded.kernels
        self._by_varlen = by_varlen
        self._greedy_head = loaded.greedy_head

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        """Run all tokens of the batch (at least one) and sample the first of its `logits_rows`, which may be none.

        The rest are those that tell the log-probabilities of prompts.
        """
        if self._greedy_head is None:
            return self.sample(self.forward(batch), sampling)
        return self._choose(batch, sampling, self._greedy_head)

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch) -> torch.Tensor:
        """Run all tokens of the batch. Returns the logits [S + P, V] of its `logits_rows`."""
        device_batch = self._device_batch(batch)
        logits: torch.Tensor = self._run(self._model, device_batch, logits_to_keep=device_batch.logits_rows).logits[0]
        return logits

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, sampling: SamplingBatch) -> ExecuteResult:
        """The next tokens from logits [S + P, V]."""
        assert len(sampling) + len(sampling.prompt_token_ids) == len(logits), "a use for each row of logits"
        started_ns = time.perf_counter_ns()
        tokens = sample(logits, sampling)
        return _result(tokens, self._logprobs(logits, tokens, sampling), started_ns)

    @torch.inference_mode()
    def _choose(self, batch: RaggedBatch, sampling: SamplingBatch, head: GreedyHead) -> ExecuteResult:
        """The same, with logits for those alone that ask for more than the largest one."""
        device_batch = self._device_batch(batch)
        hidden = self._run(self._model.base_model, device_batch).last_hidden_state[0]
        started_ns = time.perf_counter_ns()
        states = hidden[device_batch.logits_rows]  # [S + P, hidden]
        takes_largest = sampling.takes_largest
        largest, others = np.flatnonzero(takes_largest), np.flatnonzero(~takes_largest)
        tokens = torch.empty(len(sampling), dtype=torch.int64)
        if len(largest):
            tokens[largest] = checked(*head.largest(states[largest]))
        rest = np.concatenate([others, np.arange(len(sampling), len(states))])
        if not len(rest):
            return _result(tokens, None, started_ns)
        logits, of_others = head.logits(states[rest]), sampling.only(others)
        tokens[others] = sample(logits, of_others)
        logprobs = self._logprobs(logits, tokens[others], of_others)
        logprobs = None if logprobs is None else replace(logprobs, rows=rest[logprobs.rows])
        return _result(tokens, logprobs, started_ns)

    def _device_batch(self, batch: RaggedBatch) -> DeviceBatch:
        device_batch = DeviceBatch(batch, spec=self._kv_cache.spec, device=self._device)
        if self._kernels is None:  # kernels read no slot that nobody has written
            self._kv_cache.clear(device_batch.entered_blocks)
        return device_batch

    def _run(self, model: Any, batch: DeviceBatch, **options: Any) -> Any:
        return model(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            use_cache=False,
            paged_context=PagedContext(
                kv_cache=self._kv_cache, batch=batch, kernels=self._kernels, by_varlen=self._by_varlen
            ),
            **options,
        )

    def _logprobs(self, logits: torch.Tensor, tokens: torch.Tensor, sampling: SamplingBatch) -> Logprobs | None:
        wanted = np.concatenate([sampling.num_logprobs, sampling.num_prompt_logprobs])
        prompt_token_ids = to_device(torch.from_numpy(sampling.prompt_token_ids), self._device)
        return logprobs_of(logits, torch.cat([tokens, prompt_token_ids]), wanted)


def _result(tokens: torch.Tensor, logprobs: Logprobs | None, started_ns: int) -> ExecuteResult:
    next_token_ids = tokens.cpu().numpy()  # the one copy to the host, where nobody asks for log-probabilities
    return ExecuteResult(
        next_token_ids=next_token_ids,
        non_finite=next_token_ids == NOT_SAMPLED,
        logprobs=logprobs,
        sample_us=(time.perf_counter_ns() - started_ns) // 1000,
    )


def runner_for(loaded: LoadedModel, kv_cache: KVCache, num_ranks: int, progress: Callable[[str], None]) -> ModelRunner:
    """The runner of one of so many ranks, with the best attention that the device has for it."""
    num_heads = loaded.config.get_text_config(decoder=True).num_attention_heads // num_ranks
    by_varlen = serves_varlen(kv_cache.spec, device=loaded.device, num_heads=num_heads, progress=progress)
    return ModelRunner(loaded, kv_cache, by_varlen=by_varlen)
