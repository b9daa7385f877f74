"""The tensors behind KV blocks: one device pool, one swap pool on the host.

Both pools have the shape [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim], where index 0 of the second
dimension holds keys and 1 holds values. One tensor for all layers makes a swap copy one indexed operation; the layer
comes first so that each layer's pool is contiguous, which is what every pass reads, while swaps are rare.

Who holds which block is not known here: callers pass block ids. No block is a dummy; all can be handed out.

Legend: T tokens of a pass, B block ids of one call, H KV heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kernels.cpu import CpuKernels
from executor_service.kv.streamed_swap import StreamedSwap
from executor_service.model.transfer import to_device

KEY_AND_VALUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """What one token stores, and how many tokens share a block."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int  # tokens
    dtype: torch.dtype

    @classmethod
    def from_config(cls, config: Any, *, block_size: int, dtype: torch.dtype) -> KVCacheSpec:
        """Read the sizes from a transformers configuration (of a text model, or of one that contains one)."""
        text_config = config.get_text_config(decoder=True)
        num_attention_heads: int = text_config.num_attention_heads
        return cls(
            num_layers=text_config.num_hidden_layers,
            num_kv_heads=getattr(text_config, "num_key_value_heads", None) or num_attention_heads,
            head_dim=getattr(text_config, "head_dim", None) or text_config.hidden_size // num_attention_heads,
            block_size=block_size,
            dtype=dtype,
        )


def bytes_per_block(spec: KVCacheSpec) -> int:
    """Bytes of one block over all layers; the same on the device and in swap space."""
    return prod(
        (
            spec.num_layers,
            KEY_AND_VALUE,
            spec.block_size,
            spec.num_kv_heads,
            spec.head_dim,
            spec.dtype.itemsize,
        )
    )


class KVCache:
    """The device pool and the swap pool, with the ways to touch them: clear, write, gather, copy out, copy in."""

    def __init__(
        self, spec: KVCacheSpec, *, num_blocks: int, num_swap_blocks: int, device: torch.device | str = "cpu"
    ) -> None:
        self.spec = spec
        self.num_blocks = num_blocks
        self.num_swap_blocks = num_swap_blocks
        self.device = torch.device(device)
        self._pool = _zeros(_pool_shape(spec, num_blocks), spec.dtype, self.device)
        on_cuda = self.device.type == "cuda"
        self._streamed = StreamedSwap(self._pool, num_swap_blocks) if on_cuda else None
        swap_shape = _pool_shape(spec, 0 if on_cuda else num_swap_blocks)
        self._swap_pool = _zeros(swap_shape, spec.dtype, torch.device("cpu"))
        self._layers = tuple((pool[0], pool[1]) for pool in self._pool)
        self._layer_slots = tuple((keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in self._layers)
        self._scratch = torch.empty(0, dtype=spec.dtype, device=self.device)

    def layer_blocks(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [num_blocks, block_size, H, D] of one layer, the pool itself."""
        return self._layers[layer]

    def layer_slots(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as keys and values [num_blocks * block_size, H, D]."""
        return self._layer_slots[layer]

    def write(
        self,
        layer: int,
        keys: torch.Tensor,
        values: torch.Tensor,
        slot_mapping: torch.Tensor,
        kernels: CpuKernels | None = None,
    ) -> None:
        """Store keys and values [T, H, D] of one layer in slots [T] int64, slot = block * block_size + offset."""
        key_slots, value_slots = self._layer_slots[layer]
        if kernels is not None:
            kernels.write_slots(key_slots, value_slots, keys, values, slot_mapping)
        else:
            key_slots.index_copy_(0, slot_mapping, keys)
            value_slots.index_copy_(0, slot_mapping, values)

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero blocks [B] int64 in all layers, to be done before the first token of a block is written.

        Attention gathers whole blocks and weighs the unused slots with zero, and 0 * NaN is NaN: what a faulty request
        left behind would reach the next holder of its blocks.
        """
        self._pool.index_fill_(2, blocks, 0.0)

    def gather(self, layer: int, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [B * block_size, H, D] of blocks [B] int64, in their order.

        Both are views of one scratch buffer: valid until the next call. Fresh memory for each call would cost more
        in page faults than the copy itself (three times the time of a decode pass's attention on a CPU).
        """
        spec = self.spec
        shape = (KEY_AND_VALUE, len(blocks), spec.block_size, spec.num_kv_heads, spec.head_dim)
        if self._scratch.numel() < prod(shape):
            self._scratch = torch.empty(prod(shape), dtype=spec.dtype, device=self.device)
        keys, values = self._scratch[: prod(shape)].view(shape)
        torch.index_select(self._layers[layer][0], 0, blocks, out=keys)
        torch.index_select(self._layers[layer][1], 0, blocks, out=values)
        return keys.flatten(0, 1), values.flatten(0, 1)

    def copy_out(self, device_blocks: NDArray[np.integer[Any]], swap_blocks: NDArray[np.integer[Any]]) -> None:
        """Copy device blocks to swap blocks, pairwise and over all layers. Complete, or fenced, when it returns."""
        source, target = self._checked_pairs(device_blocks, swap_blocks)
        if self._streamed is not None:
            self._streamed.copy_out(source, target)
        else:
            self._swap_pool[:, :, target] = self._pool[:, :, source]

    def copy_in(self, swap_blocks: NDArray[np.integer[Any]], device_blocks: NDArray[np.integer[Any]]) -> None:
        """Copy swap blocks to device blocks, pairwise and over all layers. Complete, or fenced, when it returns."""
        target, source = self._checked_pairs(device_blocks, swap_blocks)
        if self._streamed is not None:
            self._streamed.copy_in(source, target)
        else:
            self._pool[:, :, target] = self._swap_pool[:, :, source]

    def copy_within(self, source: NDArray[np.integer[Any]], target: NDArray[np.integer[Any]]) -> None:
        """Copy device blocks to others, pairwise and over all layers, as if all were read before any is written."""
        to, of = (to_device(blocks, self.device) for blocks in self._checked_pairs(target, source))
        self._pool.index_copy_(2, to, self._pool.index_select(2, of))

    def wait_for_copies(self) -> None:
        """Until all copies to and from swap space are done: for measurements."""
        if self._streamed is not None:
            self._streamed.wait()

    def _checked_pairs(
        self, device_blocks: NDArray[np.integer[Any]], others: NDArray[np.integer[Any]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert len(device_blocks) == len(others), "a copy needs as many sources as targets"
        # Indexing counts negative ids from the end, so it would not catch them.
        assert np.all(np.asarray(device_blocks) >= 0), "negative device block id"
        assert np.all(np.asarray(others) >= 0), "negative block id"
        return (
            torch.from_numpy(np.asarray(device_blocks, dtype=np.int64)),
            torch.from_numpy(np.asarray(others, dtype=np.int64)),
        )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Of a CPU: memory that the system gives as it is first used, zeroed; torch would write all of it at once."""
    if device.type != "cpu" or 0 in shape:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


def _pool_shape(spec: KVCacheSpec, num_blocks: int) -> tuple[int, ...]:
    return (spec.num_layers, KEY_AND_VALUE, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)
