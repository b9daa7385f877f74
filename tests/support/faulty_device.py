"""A device without a model that fails when it is told to."""

from __future__ import annotations

from executor_service.model.batch import RaggedBatch
from executor_service.model.runner import ExecuteResult
from executor_service.sampling.sampler import NOT_SAMPLED, SamplingBatch
from support.token_runner import TokenCache, TokenRunner


class FaultyDevice(TokenRunner):
    """Fails in some passes as a whole, or gives logits that are no numbers for some rows of a pass."""

    def __init__(self, limits_blocks: int, num_swap_blocks: int = 0) -> None:
        self.cache = TokenCache(num_blocks=limits_blocks, num_swap_blocks=num_swap_blocks, block_size=16)
        super().__init__(self.cache)
        self.num_passes = 0
        self.failing_passes: set[int] = set()
        self.broken_rows: dict[int, int] = {}  # pass -> row

    def execute(self, batch: RaggedBatch, sampling: SamplingBatch) -> ExecuteResult:
        self.num_passes += 1
        if self.num_passes in self.failing_passes:
            raise MemoryError("out of memory")
        result = super().execute(batch, sampling)
        if self.num_passes in self.broken_rows:
            row = self.broken_rows[self.num_passes]
            result.next_token_ids[row], result.non_finite[row] = NOT_SAMPLED, True
        return result
