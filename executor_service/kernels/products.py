"""The matrix products of linear.cpp and head.cpp as functions over tensors in bfloat16, for processors with AVX2, or
with AVX-512, with or without instructions for bfloat16.

Legend: T tokens, I inputs, O outputs.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from executor_service.huge_pages import Arena

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "pack_bfloat16": [_POINTER] * 2 + [_SIZE] * 2,
    "unpack_rows_bfloat16": [_POINTER] * 3 + [_SIZE] * 2,
    "linear_bfloat16": [_POINTER] * 4 + [_SIZE] * 3,
    "largest_logits_bfloat16": [_POINTER] * 4 + [_SIZE] * 3,
}
_SCREEN_SIGNATURES = {
    "pack_screen_bfloat16": [_POINTER] * 3 + [_SIZE] * 2,
    "screened_largest_logits_bfloat16": [_POINTER] * 6 + [_SIZE] * 3,
}
_PANEL = 32  # outputs of a panel, and inputs of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeight:
    """A weight [O, I] in the order in which the processor multiplies by it."""

    panels: torch.Tensor  # [ceil(O / 32) * 32 * I] bfloat16
    num_inputs: int
    num_outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A weight [O, I] in 8 bits beside itself, and how much that leaves out: head_screened.cpp."""

    steps: torch.Tensor  # [O * I] uint8
    bounds: torch.Tensor  # [O * 3] float32


class Products:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._arena = Arena()
        # Beside tiles 8 bits by vectors would win nothing.
        self._can_screen = hasattr(library, "pack_screen_bfloat16") and not self.uses_tiles
        for name, argument_types in (_SIGNATURES | (_SCREEN_SIGNATURES if self._can_screen else {})).items():
            function = getattr(library, name)
            function.argtypes, function.restype = argument_types, None
        self._linear = library.linear_bfloat16

    @classmethod
    def of(cls, library: ctypes.CDLL) -> Products | None:
        """None where this processor has no AVX2."""
        return cls(library) if hasattr(library, "uses_tiles") else None

    @property
    def uses_tiles(self) -> bool:
        """Whether products run on AMX, else on vectors."""
        return bool(self._library.uses_tiles())

    @staticmethod
    def has_shape(weight: torch.Tensor) -> bool:
        """Whether a weight [O, I] has a shape that `pack` takes."""
        return weight.shape[0] % (_PANEL // 2) == 0 and weight.shape[1] % _PANEL == 0

    @staticmethod
    def can_pack(weight: torch.Tensor) -> bool:
        """Whether a weight [O, I] has a shape and type that `pack` takes."""
        return weight.dtype is torch.bfloat16 and Products.has_shape(weight)

    def pack(self, weight: torch.Tensor) -> PackedWeight:
        num_outputs, num_inputs = weight.shape
        count = -(-num_outputs // _PANEL) * _PANEL * num_inputs
        panels = self._arena.empty(count, weight.dtype)
        weight = weight.contiguous()
        self._library.pack_bfloat16(weight.data_ptr(), panels.data_ptr(), num_outputs, num_inputs)
        return PackedWeight(panels=panels, num_inputs=num_inputs, num_outputs=num_outputs)

    @staticmethod
    def can_pack_in_place(weight: torch.Tensor) -> bool:
        """Whether a weight [O, I] has a shape, type and layout that `pack_in_place` takes."""
        return Products.can_pack(weight) and weight.shape[0] % _PANEL == 0 and weight.is_contiguous()

    def pack_in_place(self, weight: torch.Tensor) -> PackedWeight:
        """The same in the memory of the weight, whose rows are gone then: `rows` has them."""
        num_outputs, num_inputs = weight.shape
        self._library.pack_bfloat16(weight.data_ptr(), weight.data_ptr(), num_outputs, num_inputs)
        return PackedWeight(panels=weight.view(-1), num_inputs=num_inputs, num_outputs=num_outputs)

    def rows(self, weight: PackedWeight, numbers: torch.Tensor) -> torch.Tensor:
        """Rows of a weight as they were before it was packed; numbers [T] int64, less than O. Returns [T, I]."""
        numbers = numbers.contiguous()
        rows = weight.panels.new_empty(len(numbers), weight.num_inputs)
        self._library.unpack_rows_bfloat16(weight.panels.data_ptr(), numbers.data_ptr(), rows.data_ptr(), *rows.shape)
        return rows

    def linear(self, states: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
        """states [..., I]; bias [O] float32. Returns [..., O]: products and bias summed in float32, rounded once."""
        states = states.contiguous()
        output = states.new_empty(*states.shape[:-1], weight.num_outputs)
        self._linear(
            states.data_ptr(),
            weight.panels.data_ptr(),
            None if bias is None else bias.data_ptr(),
            output.data_ptr(),
            states.numel() // weight.num_inputs,
            weight.num_inputs,
            weight.num_outputs,
        )
        return output

    def screen(self, weight: PackedWeight) -> Screen | None:
        """What `largest_logits` is faster with; None where the processor wins nothing by it. O is a multiple of 32."""
        if not self._can_screen:
            return None
        steps = self._arena.empty(weight.num_outputs * weight.num_inputs, torch.uint8)
        bounds = self._arena.empty(weight.num_outputs * 3, torch.float32)
        self._library.pack_screen_bfloat16(
            weight.panels.data_ptr(), steps.data_ptr(), bounds.data_ptr(), weight.num_outputs, weight.num_inputs
        )
        return Screen(steps=steps, bounds=bounds)

    def largest_logits(
        self, states: torch.Tensor, weight: PackedWeight, screen: Screen | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """states [T, I]; O is a multiple of 32. The output of the largest logit in bfloat16 of each, [T] int64, the
        lowest among equals, and that logit [T] float32: a NaN where any of the row is one. The same with a `screen` of
        the weight.
        """
        states = states.contiguous()
        token_ids = torch.empty(len(states), dtype=torch.int64)
        maxima = torch.empty(len(states), dtype=torch.float32)
        results_and_sizes = (token_ids.data_ptr(), maxima.data_ptr(), *states.shape, weight.num_outputs)
        given = (states.data_ptr(), weight.panels.data_ptr())
        if screen is None:
            self._library.largest_logits_bfloat16(*given, *results_and_sizes)
        else:
            self._library.screened_largest_logits_bfloat16(
                *given, screen.steps.data_ptr(), screen.bounds.data_ptr(), *results_and_sizes
            )
        return token_ids, maxima
