"""Swap space of a CUDA device: pinned memory of the host, and copies on a stream of their own.

The host waits for nothing. Streams wait for one another by events, and only for what they must:

- A copy out waits for the passes before it, which write what it copies. It gathers its blocks first; the next pass,
  which may write to them, waits for that, and not for the way to the host.
- A copy in waits for the passes before it, which may still read what was in its target blocks. The next pass waits for
  all of it.
- Copies keep their order among themselves, so a swap block is never read or written too early.

Swap blocks lie one after another, each with all layers, so that one is one copy: [num_swap_blocks, layers, 2, ...]. The
device pool has its blocks in its third dimension.
"""

from __future__ import annotations

import torch

from executor_service.model.transfer import to_device

BLOCK_DIMENSION = 2


class StreamedSwap:
    """Moves blocks between a device pool [layers, 2, num_blocks, ...] and ``num_swap_blocks`` on the host.

    torch rounds pinned memory up to a power of two.
    """

    def __init__(self, pool: torch.Tensor, num_swap_blocks: int) -> None:
        layers, two, _, *rest = pool.shape
        self._pool = pool
        self._host = torch.zeros(
            (num_swap_blocks, layers, two, *rest), dtype=pool.dtype, pin_memory=pool.device.type == "cuda"
        )
        self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]

    def copy_out(self, device_blocks: torch.Tensor, swap_blocks: torch.Tensor) -> None:
        """Both [n] int64 on the CPU, pairwise. Fenced when it returns: the device blocks may be given away."""
        passes = torch.cuda.current_stream(self._pool.device)
        self._stream.wait_stream(passes)
        with torch.cuda.stream(self._stream):
            index = to_device(device_blocks, self._pool.device)
            gathered = self._pool.index_select(BLOCK_DIMENSION, index).movedim(BLOCK_DIMENSION, 0).contiguous()
            is_gathered = self._stream.record_event()
            for block, place in zip(gathered, swap_blocks.tolist(), strict=True):
                self._host[place].copy_(block, non_blocking=True)
        passes.wait_event(is_gathered)

    def copy_in(self, swap_blocks: torch.Tensor, device_blocks: torch.Tensor) -> None:
        """Likewise, the other way: fenced when it returns, the swap blocks may be given away."""
        passes = torch.cuda.current_stream(self._pool.device)
        self._stream.wait_stream(passes)
        with torch.cuda.stream(self._stream):
            index = to_device(device_blocks, self._pool.device)
            arriving = torch.empty(
                (len(swap_blocks), *self._host.shape[1:]), dtype=self._pool.dtype, device=self._pool.device
            )
            for block, place in zip(arriving, swap_blocks.tolist(), strict=True):
                block.copy_(self._host[place], non_blocking=True)
            self._pool.index_copy_(BLOCK_DIMENSION, index, arriving.movedim(0, BLOCK_DIMENSION))
        passes.wait_stream(self._stream)

    def wait(self) -> None:
        """Until all copies are done: for measurements."""
        self._stream.synchronize()
