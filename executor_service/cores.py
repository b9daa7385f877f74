"""How many threads of torch have a core to themselves."""

from __future__ import annotations

from pathlib import Path

import torch

# What a container may use: microseconds in each period, and the period; of control groups version 2 in one file, where
# "max" stands for all there is, and of version 1 in two, where -1 does.
_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),
)


def usable_threads() -> int:
    """As many as torch would start, which is `OMP_NUM_THREADS` or the cores that this process is bound to, but no more
    than a container's share of the processors is worth, rounded up: threads beyond that are halted for most of each
    period, and all others wait for them.
    """
    return min([torch.get_num_threads(), *_container_cores()])


def _container_cores() -> list[int]:
    cores = []
    for paths in _QUOTAS:
        if all(path.is_file() for path in paths):
            quota, period = " ".join(path.read_text(encoding="ascii") for path in paths).split()
            if quota not in ("max", "-1"):
                cores.append(max(1, -(-int(quota) // int(period))))
    return cores
