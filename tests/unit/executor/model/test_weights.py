"""Weights are read in pieces, and are what the file says; no page of the file stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from executor_service.model import weights
from executor_service.model.errors import ModelSourceError
from executor_service.model.weights import stored_tensors

STORED = {
    "of rows": torch.randn(37, 5, generator=torch.Generator().manual_seed(0)),
    "of one row": torch.arange(300, dtype=torch.float32).view(1, 300),
    "a vector": torch.arange(100, dtype=torch.bfloat16),
    "a number": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "of integers": torch.arange(64, dtype=torch.int32).view(8, 8),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_file(STORED, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("piece_bytes", [10, 100, 64 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, None], ids=str)
def test_pieces_make_up_what_was_stored(
    saved: Path, piece_bytes: int, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_PIECE_BYTES", piece_bytes)
    read = {name: tensor[...].to(device="cpu", dtype=dtype) for name, tensor in stored_tensors(saved).items()}
    assert read.keys() == STORED.keys()
    for name, tensor in read.items():
        expected = STORED[name] if dtype is None else STORED[name].to(dtype)
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), name
        assert torch.equal(tensor, expected), name


@pytest.mark.parametrize("piece_bytes", [100, 64 << 20])
def test_no_tensor_keeps_the_file(saved: Path, piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_PIECE_BYTES", piece_bytes)
    read = [tensor[...].to(device="cpu", dtype=None) for tensor in stored_tensors(saved).values()]
    assert len(read) == len(STORED)
    assert str(saved) not in Path("/proc/self/maps").read_text()


def test_types_are_told_as_the_file_spells_them(saved: Path) -> None:
    found = {name: tensor.get_dtype() for name, tensor in stored_tensors(saved).items()}
    assert (found["of rows"], found["a vector"], found["of integers"]) == ("F32", "BF16", "I32")


def test_of_several_files_those_of_the_index_are_read(tmp_path: Path) -> None:
    for number in range(3):
        save_file({f"weight {number}": torch.full((2,), float(number))}, tmp_path / f"part-{number}.safetensors")
    index = {"weight_map": {f"weight {number}": f"part-{number}.safetensors" for number in range(2)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    read = {name: tensor[...].to(device="cpu", dtype=None) for name, tensor in stored_tensors(tmp_path).items()}
    assert {name: tensor.tolist() for name, tensor in read.items()} == {"weight 0": [0, 0], "weight 1": [1, 1]}


def test_files_of_other_names_are_no_model(tmp_path: Path) -> None:
    save_file({"adapter": torch.zeros(1)}, tmp_path / "adapter.safetensors")
    with pytest.raises(ModelSourceError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        stored_tensors(tmp_path)
