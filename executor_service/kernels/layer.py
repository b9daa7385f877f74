"""A whole decoder layer as one call of layer.cpp, whose structures stand here field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor_service.kernels.products import PackedWeight

_POINTER, _SIZE, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int32


class _Linear(ctypes.Structure):
    _fields_ = [("panels", _POINTER), ("bias", _POINTER), ("num_inputs", _SIZE), ("num_outputs", _SIZE)]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, _Linear) for name in ("qkv", "attention_output", "gate_up", "down")),
        *(
            (name, _POINTER)
            for name in ("input_norm", "attention_norm", "feed_forward_norm", "feed_forward_output_norm")
        ),
        *((name, _POINTER) for name in ("query_norm", "key_norm")),
        *((name, _SIZE) for name in ("num_heads", "num_kv_heads", "head_dim", "window")),
        *((name, _FLOAT) for name in ("norm_epsilon", "head_norm_epsilon", "scaling", "softcap")),
        *((name, _FLAG) for name in ("norms_round_first", "head_norms_round_first", "gate_is_gelu", "is_last")),
    ]


class _Pass(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("slot_mapping", "block_tables", "context_lens", "chunk_starts")),
        *((name, _SIZE) for name in ("num_tokens", "num_decodes", "num_requests", "table_width", "block_size")),
        *((name, _POINTER) for name in ("rows", "row_tables", "row_context_lens")),
        ("num_rows", _SIZE),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearWeights:
    packed: PackedWeight
    bias: torch.Tensor | None  # [O] float32


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """What a layer is made of. Norms are weights [hidden] or [head_dim] in float32; None: there is none there."""

    qkv: LinearWeights
    attention_output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights
    input_norm: torch.Tensor
    attention_norm: torch.Tensor | None  # of what attention adds to the states
    feed_forward_norm: torch.Tensor
    feed_forward_output_norm: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    norm_epsilon: float
    head_norm_epsilon: float
    scaling: float
    softcap: float | None
    norms_round_first: bool
    head_norms_round_first: bool
    gate_is_gelu: bool


class LayerPass:
    """What all layers of a pass share, held for as long as the kernels may read it."""

    def __init__(
        self,
        *,
        slot_mapping: torch.Tensor,
        block_tables: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        chunk_starts: NDArray[np.int64],
        num_decodes: int,
        block_size: int,
        rows: NDArray[np.int64],
        row_tables: NDArray[np.int32],
        row_context_lens: NDArray[np.int32],
    ) -> None:
        """slot_mapping [T] int64; block_tables [R, W]; context_lens [R]; chunk_starts [R - num_decodes + 1].

        rows [S]: the tokens whose states are asked for; row_tables [S, W] and row_context_lens [S]: theirs as decodes.
        """
        assert block_tables.flags.c_contiguous
        assert row_tables.flags.c_contiguous
        self._held = (slot_mapping, block_tables, context_lens, chunk_starts, rows, row_tables, row_context_lens)
        self.fields = _Pass(
            slot_mapping.data_ptr(),
            block_tables.ctypes.data,
            context_lens.ctypes.data,
            chunk_starts.ctypes.data,
            len(slot_mapping),
            num_decodes,
            len(context_lens),
            block_tables.shape[1],
            block_size,
            rows.ctypes.data,
            row_tables.ctypes.data,
            row_context_lens.ctypes.data,
            len(rows),
        )
        self.pointer = ctypes.addressof(self.fields)


class LayerKernel:
    """One layer, ready to run. Raises AttributeError where the library has no such kernel."""

    def __init__(self, library: ctypes.CDLL, weights: LayerWeights) -> None:
        self._run: Callable[..., Any] = library.run_layer_bfloat16
        self._run.argtypes, self._run.restype = [_POINTER] * 7, None
        self._weights = weights
        self._fields = _fields_of(weights)
        self._pointer = ctypes.addressof(self._fields)

    def end_with_rows(self) -> None:
        """It is the model's last one: of what follows its keys and values only a pass's rows are computed."""
        self._fields.is_last = True

    def run(
        self,
        shared: LayerPass,
        states: torch.Tensor,
        key_slots: torch.Tensor,
        value_slots: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
    ) -> None:
        """states [T, hidden], contiguous, in place, of the model's last layer the rows that are asked for alone;
        key_slots and value_slots: its pool; cosine, sine [T, D].
        """
        self._run(
            self._pointer,
            shared.pointer,
            states.data_ptr(),
            key_slots.data_ptr(),
            value_slots.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
        )


def _fields_of(weights: LayerWeights) -> _Layer:
    def linear(of: LinearWeights) -> _Linear:
        return _Linear(of.packed.panels.data_ptr(), _address(of.bias), of.packed.num_inputs, of.packed.num_outputs)

    return _Layer(
        linear(weights.qkv),
        linear(weights.attention_output),
        linear(weights.gate_up),
        linear(weights.down),
        _address(weights.input_norm),
        _address(weights.attention_norm),
        _address(weights.feed_forward_norm),
        _address(weights.feed_forward_output_norm),
        _address(weights.query_norm),
        _address(weights.key_norm),
        weights.num_heads,
        weights.num_kv_heads,
        weights.head_dim,
        weights.window or 0,
        weights.norm_epsilon,
        weights.head_norm_epsilon,
        weights.scaling,
        weights.softcap or 0.0,
        weights.norms_round_first,
        weights.head_norms_round_first,
        weights.gate_is_gelu,
        False,
    )


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
