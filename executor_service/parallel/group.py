"""The process group of an executor's ranks: gloo between CPUs, nccl between CUDA devices, on one machine."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

# All ranks are in the same pass, so one that keeps the others waiting for so long is lost, though its process lives.
TIMEOUT = timedelta(minutes=5)


def meet(rendezvous: Path, *, rank: int, size: int, device: torch.device) -> dist.ProcessGroup:
    """Meet the other ranks at a file, which nobody has made yet.

    Returns when all have come, and the file may go. gloo keeps to the loopback interface: it would pick one by the name
    of the host, which need not resolve, and listen where others can reach it.
    """
    on_cuda = device.type == "cuda"
    if not on_cuda:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "nccl" if on_cuda else "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
        device_id=device if on_cuda else None,  # nccl connects at once, not in the first pass
    )
    dist.barrier()
    assert dist.group.WORLD is not None
    return dist.group.WORLD
