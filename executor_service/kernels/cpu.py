"""The kernels of cpu.cpp as functions over tensors on the CPU, in bfloat16 or float32.

Calls leave the interpreter's lock free, so the threads that serve clients go on meanwhile.

Legend: T tokens, R decodes, H query heads, K KV heads, D head dimension.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kernels.build import KernelBuildError
from executor_service.kernels.layer import LayerKernel, LayerWeights
from executor_service.kernels.products import Products

_POINTER, _SIZE, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32
_SIGNATURES = {
    "write_slots": [_POINTER] * 5 + [_SIZE] * 7,
    "attend_decodes": [_POINTER] * 7 + [_SIZE] * 9 + [_FLOAT] * 2,
    "attend_chunks": [_POINTER] * 8 + [_SIZE] * 9 + [_FLOAT] * 2,
    "normalise": [_POINTER] * 3 + [_SIZE] * 2 + [_FLOAT, _FLAG],
    "rotate": [_POINTER] * 3 + [_SIZE] * 3,
    "place_heads": [_POINTER] * 9 + [_SIZE] * 4 + [_FLOAT, _FLAG],
    "gate": [_POINTER] * 2 + [_SIZE] * 2 + [_FLAG],
}
SERVED_DTYPES = (torch.bfloat16, torch.float32)


class Gate(Enum):
    SILU = 0
    GELU_TANH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNorms:
    """How the heads of queries and keys are normalised, each by its root mean square."""

    query_weight: torch.Tensor  # [D] float32
    key_weight: torch.Tensor  # [D] float32
    epsilon: float
    rounds_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """What R requests attend to, each to its own part of the cache, and how."""

    key_blocks: torch.Tensor  # [num_blocks, block_size, K, D]
    value_blocks: torch.Tensor  # the same
    block_tables: NDArray[np.int32]  # [R, W]
    context_lens: NDArray[np.int32]  # [R]
    scaling: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None  # [H] float32


class CpuKernels:
    """The compiled library, for tensors of one of SERVED_DTYPES. Raises KernelBuildError if it cannot be loaded."""

    def __init__(self, library: Path, dtype: torch.dtype) -> None:
        self.dtype = dtype
        try:
            self._library = functions = ctypes.CDLL(str(library))
            self._write_slots = _function(functions, "write_slots", dtype)
            self._attend_decodes = _function(functions, "attend_decodes", dtype)
            self._normalise = _function(functions, "normalise", dtype)
            self._rotate = _function(functions, "rotate", dtype)
            self._place_heads = _function(functions, "place_heads", dtype)
            self._gate = _function(functions, "gate", dtype)
            self.products = Products.of(functions) if dtype is torch.bfloat16 else None
            # What the products are made of, chunks are too.
            self._attend_chunks = None if self.products is None else _function(functions, "attend_chunks", dtype)
        except (OSError, AttributeError) as error:
            raise KernelBuildError(f"cannot load {library}: {error}") from error

    def layer(self, weights: LayerWeights) -> LayerKernel:
        """Only in bfloat16, where `products` is there too."""
        assert self.products is not None
        return LayerKernel(self._library, weights)

    def write_slots(
        self,
        key_slots: torch.Tensor,
        value_slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Store keys and values [T, K, D], rows contiguous, in slots [num_slots, K, D] at slot_mapping [T] int64."""
        num_tokens, num_heads, head_dim = keys.shape
        assert keys.stride(2) == values.stride(2) == 1
        assert key_slots.is_contiguous()
        assert value_slots.is_contiguous()
        self._write_slots(
            key_slots.data_ptr(),
            value_slots.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slot_mapping.data_ptr(),
            num_tokens,
            num_heads,
            head_dim,
            *keys.stride()[:2],
            *values.stride()[:2],
        )

    def attend_decodes(self, query: torch.Tensor, output: torch.Tensor, contexts: Contexts) -> None:
        """Attend from query [R, H, D], one token a request, into output [R, H, D], both at the head of larger tensors.

        Only slots of a request's context are read, and of those only the ones that its window reaches.
        """
        self._attend_decodes(*_attention_arguments(query, output, contexts))

    def serves_chunks(self, head_dim: int) -> bool:
        """Whether `attend_chunks` is there for heads of this size."""
        return self._attend_chunks is not None and head_dim % 32 == 0

    def attend_chunks(
        self, query: torch.Tensor, output: torch.Tensor, contexts: Contexts, query_starts: NDArray[np.int64]
    ) -> None:
        """Attend from chunks in query [T, H, D] into output [T, H, D].

        query_starts [R + 1]: the tokens of request r are [query_starts[r], query_starts[r + 1]) of T, and the last ones
        of its context. Only for sizes of heads that `serves_chunks` names.
        """
        assert self._attend_chunks is not None
        self._attend_chunks(query_starts.ctypes.data, *_attention_arguments(query, output, contexts))

    def normalise(
        self, states: torch.Tensor, weight: torch.Tensor, epsilon: float, *, rounds_first: bool
    ) -> torch.Tensor:
        """Root mean square normalisation over the last dimension of dense states; weight [D] float32."""
        dim = states.shape[-1]
        output = torch.empty_like(states)
        self._normalise(
            states.data_ptr(),
            output.data_ptr(),
            weight.data_ptr(),
            states.numel() // dim,
            dim,
            epsilon,
            rounds_first,
        )
        return output

    def rotate(self, states: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        """Rotate states [T, H, D], contiguous, in place by cosine and sine [T, D]."""
        self._rotate(states.data_ptr(), cosine.data_ptr(), sine.data_ptr(), *states.shape)

    def place_heads(
        self,
        states: torch.Tensor,
        key_slots: torch.Tensor,
        value_slots: torch.Tensor,
        slot_mapping: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        norms: HeadNorms | None,
    ) -> torch.Tensor:
        """Queries [T, H, D], normalised and rotated, of states [T, (H + 2 * K) * D]; keys and values go to slots.

        key_slots, value_slots [num_slots, K, D]; slot_mapping [T] int64; cosine, sine [T, D], contiguous.
        """
        _, num_kv_heads, head_dim = key_slots.shape
        num_tokens, width = states.shape
        num_heads = width // head_dim - 2 * num_kv_heads
        assert states.is_contiguous()
        assert cosine.is_contiguous()
        assert sine.is_contiguous()
        assert key_slots.is_contiguous()
        assert value_slots.is_contiguous()
        query = states.new_empty(num_tokens, num_heads, head_dim)
        self._place_heads(
            states.data_ptr(),
            query.data_ptr(),
            key_slots.data_ptr(),
            value_slots.data_ptr(),
            slot_mapping.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            None if norms is None else norms.query_weight.data_ptr(),
            None if norms is None else norms.key_weight.data_ptr(),
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            0.0 if norms is None else norms.epsilon,
            norms is not None and norms.rounds_first,
        )
        return query

    def gate(self, gates_and_ups: torch.Tensor, activation: Gate) -> torch.Tensor:
        """activation(gate) * up of [..., 2 * I], contiguous, gates first. Returns [..., I]."""
        dim = gates_and_ups.shape[-1] // 2
        output = gates_and_ups.new_empty(*gates_and_ups.shape[:-1], dim)
        self._gate(gates_and_ups.data_ptr(), output.data_ptr(), output.numel() // dim, dim, activation.value)
        return output


def _function(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> Callable[..., Any]:
    function = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
    function.argtypes = _SIGNATURES[name]
    function.restype = None
    return function  # type: ignore[no-any-return]


def _attention_arguments(query: torch.Tensor, output: torch.Tensor, contexts: Contexts) -> tuple[Any, ...]:
    """What both kernels of attention take, in their order."""
    num_heads = query.shape[1]
    _, block_size, num_kv_heads, head_dim = contexts.key_blocks.shape
    assert query.stride(2) == 1
    assert output.is_contiguous()
    assert contexts.key_blocks.is_contiguous()
    assert contexts.value_blocks.is_contiguous()
    assert contexts.block_tables.flags.c_contiguous
    return (
        query.data_ptr(),
        output.data_ptr(),
        contexts.key_blocks.data_ptr(),
        contexts.value_blocks.data_ptr(),
        contexts.block_tables.ctypes.data,
        contexts.context_lens.ctypes.data,
        None if contexts.sinks is None else contexts.sinks.data_ptr(),
        len(contexts.context_lens),
        contexts.block_tables.shape[1],
        num_kv_heads,
        num_heads // num_kv_heads,
        head_dim,
        block_size,
        contexts.window or 0,
        *query.stride()[:2],
        contexts.scaling,
        contexts.softcap or 0.0,
    )
