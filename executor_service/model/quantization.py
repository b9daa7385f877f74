"""Whether the weights of a model are kept in fewer bits."""

from __future__ import annotations

from enum import Enum


class Quantization(Enum):
    NONE = "none"  # as the dtype has it
    INT8 = "int8"  # weights of linear layers in 8 bits, see int8.py
