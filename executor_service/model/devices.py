"""Which device a process computes on."""

from __future__ import annotations

import torch


class DeviceError(Exception):
    """The device asked for is not there. One line for a user, who sees no traceback."""


def resolve_device(name: str, *, rank: int = 0, size: int = 1) -> torch.device:
    """`cpu`, `cuda`, `cuda:N`, or `auto`: CUDA where there is a device, else the CPU.

    Of several ranks each has a CUDA device of its own, the first that is named and those after it. Raises DeviceError.
    """
    kind, _, number = name.partition(":")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        build = "" if torch.version.cuda else f", and torch {torch.__version__} is built without it"
        raise DeviceError(f"--device is {name}, but there is no CUDA device{build}")
    first, there_are = int(number or 0), torch.cuda.device_count()
    if first + size > there_are:
        needed = f"CUDA devices {first} to {first + size - 1}" if size > 1 else f"CUDA device {first}"
        raise DeviceError(f"--device is {name}, which needs {needed}; there are {there_are}, counted from 0")
    return torch.device("cuda", first + rank)
