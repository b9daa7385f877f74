"""The device that is named, or a sentence that says why not."""

from __future__ import annotations

import pytest
import torch

from executor_service.model.devices import DeviceError, resolve_device


def machine_with(monkeypatch: pytest.MonkeyPatch, num_devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)


@pytest.mark.parametrize(
    ("name", "num_devices", "rank", "size", "device"),
    [
        ("auto", 0, 0, 1, "cpu"),
        ("auto", 0, 1, 2, "cpu"),
        ("auto", 1, 0, 1, "cuda:0"),
        ("cpu", 4, 0, 1, "cpu"),
        ("cuda", 4, 0, 1, "cuda:0"),
        ("cuda:3", 4, 0, 1, "cuda:3"),
        ("auto", 2, 1, 2, "cuda:1"),
        ("cuda:1", 4, 2, 3, "cuda:3"),
    ],
)
def test_each_rank_has_a_device_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str, num_devices: int, rank: int, size: int, device: str
) -> None:
    machine_with(monkeypatch, num_devices)
    assert resolve_device(name, rank=rank, size=size) == torch.device(device)


@pytest.mark.parametrize(
    ("name", "num_devices", "size", "said"),
    [
        ("cuda", 0, 1, "--device is cuda, but there is no CUDA device"),
        ("cuda:0", 0, 1, "--device is cuda:0, but there is no CUDA device"),
        ("cuda:2", 2, 1, "--device is cuda:2, which needs CUDA device 2; there are 2, counted from 0"),
        ("auto", 1, 2, "--device is auto, which needs CUDA devices 0 to 1; there are 1, counted from 0"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, num_devices: int, size: int, said: str
) -> None:
    machine_with(monkeypatch, num_devices)
    with pytest.raises(DeviceError, match=said):
        resolve_device(name, size=size)
