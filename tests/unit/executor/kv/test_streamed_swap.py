"""Swap copies on a stream of their own: the right blocks, and each wait that order asks for, on streams that only note.

On the CPU every copy is done at once; `test_cuda.py` does the same with streams that overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from executor_service.kv.streamed_swap import StreamedSwap


class Notes(list[str]):
    """What streams were told, in order."""


class NotingStream:
    def __init__(self, name: str, notes: Notes) -> None:
        self._name, self._notes = name, notes

    def wait_stream(self, other: NotingStream) -> None:
        self._notes.append(f"{self._name} waits for {other._name}")

    def record_event(self) -> str:
        self._notes.append(f"{self._name} reaches a point")
        return f"the point of {self._name}"

    def wait_event(self, event: str) -> None:
        self._notes.append(f"{self._name} waits for {event}")

    def synchronize(self) -> None:
        self._notes.append(f"the host waits for {self._name}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    notes = Notes()

    @contextmanager
    def stream(inner: NotingStream) -> Iterator[None]:
        notes.append("copies begin")
        yield
        notes.append("copies end")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: NotingStream("copies", notes))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: NotingStream("passes", notes))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    return notes


def pool_of(num_blocks: int) -> torch.Tensor:
    """[2 layers, 2, num_blocks, 3 tokens, 1 head, 4], all different."""
    return torch.arange(2 * 2 * num_blocks * 12, dtype=torch.float32).reshape(2, 2, num_blocks, 3, 1, 4)


def test_a_round_trip_through_other_blocks_is_exact(notes: Notes) -> None:
    pool = pool_of(6)
    before = pool.clone()
    swap = StreamedSwap(pool, 4)
    swap.copy_out(torch.tensor([4, 1]), torch.tensor([0, 3]))
    pool[:, :, [4, 1]] = -1.0
    swap.copy_in(torch.tensor([3, 0]), torch.tensor([2, 5]))
    assert torch.equal(pool[:, :, 2], before[:, :, 1])
    assert torch.equal(pool[:, :, 5], before[:, :, 4])
    assert torch.equal(pool[:, :, [0, 3]], before[:, :, [0, 3]])


def test_passes_wait_for_the_gathering_of_what_leaves_and_for_all_that_comes(notes: Notes) -> None:
    swap = StreamedSwap(pool_of(2), 2)
    swap.copy_out(torch.tensor([0]), torch.tensor([1]))
    assert notes == [
        "copies waits for passes",
        "copies begin",
        "copies reaches a point",
        "copies end",
        "passes waits for the point of copies",
    ]
    notes.clear()
    swap.copy_in(torch.tensor([1]), torch.tensor([0]))
    assert notes == ["copies waits for passes", "copies begin", "copies end", "passes waits for copies"]
    notes.clear()
    swap.wait()
    assert notes == ["the host waits for copies"]


def test_what_leaves_is_gathered_before_the_point_that_passes_wait_for(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(2)
    swap = StreamedSwap(pool, 1)
    expected = pool[:, :, 1].clone()

    class Overwriting(NotingStream):
        """A pass that writes to the blocks the moment it may."""

        def record_event(self) -> str:
            pool[:, :, 1] = -1.0
            return super().record_event()

    monkeypatch.setattr(swap, "_stream", Overwriting("copies", notes))
    swap.copy_out(torch.tensor([1]), torch.tensor([0]))
    swap.copy_in(torch.tensor([0]), torch.tensor([0]))
    assert torch.equal(pool[:, :, 0], expected)


def test_no_swap_space_is_fine(notes: Notes) -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    StreamedSwap(pool_of(1), 0).copy_out(nothing, nothing)
