"""One forward pass: a ragged batch in, the next token of each row out. The only `torch.inference_mode` is here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kv.cache import KVCache
from executor_service.model.attention import PagedContext
from executor_service.model.batch import RaggedBatch
from executor_service.model.device_batch import DeviceBatch
from executor_service.model.loaded import LoadedModel
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch, sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteResult:
    """One entry for each of the batch's `logits_rows`."""

    next_token_ids: NDArray[np.int64]  # [S]; NOT_SAMPLED where the row is not finite
    non_finite: NDArray[np.bool_]  # [S] whether the row had a NaN or an infinity, so that nothing could be sampled


class ModelRunner:
    """Runs passes of one model over one KV cache."""

    def __init__(self, loaded: LoadedModel, kv_cache: KVCache) -> None:
        self._model = loaded.model
        self._device = loaded.device
        self._kv_cache = kv_cache
        self._kernels = loaded.kernels

    @torch.inference_mode()
    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        """Run all tokens of the batch (at least one) and sample its `logits_rows`, which may be none."""
        assert len(sampling) == len(batch.logits_rows), "one sampling row for each logits row"
        device_batch = DeviceBatch(batch, spec=self._kv_cache.spec, device=self._device)
        if self._kernels is None:
            self._kv_cache.clear(device_batch.entered_blocks)
        logits = self._model(
            input_ids=device_batch.input_ids,
            position_ids=device_batch.position_ids,
            use_cache=False,
            logits_to_keep=device_batch.logits_rows,
            paged_context=PagedContext(kv_cache=self._kv_cache, batch=device_batch, kernels=self._kernels),
        ).logits[0]  # [S, V]
        next_token_ids = sample(logits, sampling).cpu().numpy()  # the one copy to the host
        return ExecuteResult(next_token_ids=next_token_ids, non_finite=next_token_ids == NOT_SAMPLED)
