"""What can be asked for: a setting, so it is read before torch is imported."""

from __future__ import annotations

from enum import Enum


class KernelChoice(Enum):
    AUTO = "auto"  # compiled ones where they can be had
    COMPILED = "compiled"
    TORCH = "torch"  # the operations of torch alone
