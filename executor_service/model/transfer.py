"""From the host to the device without waiting for the device."""

from __future__ import annotations

import torch


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the CPU on the device, in the order of the current stream.

    A copy from ordinary memory makes the host wait for all that the device has to do before it. From pinned memory it
    does not; torch keeps that memory until the copy is done, and gives it out again then.
    """
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
