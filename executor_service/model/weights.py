"""The weights of a directory of safetensors, each read when transformers asks for it, and a piece at a time.

transformers itself maps the files and reads from there: in the end all pages of the files are in memory beside the
weights that were made of them (1,020 MiB beside 511 where a float32 file is loaded as bfloat16), and weights whose type
does not change stay pages of the file, of which none is a huge page. Here the file is mapped anew for each piece.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import EllipsisType

import torch
from safetensors import safe_open

from executor_service.huge_pages import ask_for_huge_pages
from executor_service.model.errors import ModelSourceError

_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_PIECE_BYTES = 64 << 20


class StoredTensor:
    """A tensor in a file, as far as the loading of transformers looks at one: ``tensor[...].to(device, dtype)``, and
    ``get_dtype()`` for checkpoints that are quantised.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file = file
        self._name = name

    def __getitem__(self, index: EllipsisType) -> StoredTensor:
        return self

    def get_dtype(self) -> str:
        """As safetensors spell it."""
        with safe_open(self._file, framework="pt") as file:
            dtype: str = file.get_slice(self._name).get_dtype()
            return dtype

    def to(self, *, device: torch.device | str, dtype: torch.dtype | None) -> torch.Tensor:
        """A tensor in memory of its own, huge pages where it is large. None: the type that it has. Thread-safe."""
        with safe_open(self._file, framework="pt") as file:
            stored: torch.Tensor = file.get_tensor(self._name)
            if stored.nbytes <= _PIECE_BYTES:
                return stored.to(device=device, dtype=dtype, copy=True)
            result = torch.empty_like(stored, dtype=dtype)
        ask_for_huge_pages(result)
        num_rows = max(1, _PIECE_BYTES * len(stored) // stored.nbytes)
        del stored
        for start in range(0, len(result), num_rows):
            rows = slice(start, start + num_rows)
            with safe_open(self._file, framework="pt") as file:
                result[rows] = file.get_slice(self._name)[rows]
        return result.to(device)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a model by name. Raises ModelSourceError, or what safetensors raises of a file that is none."""
    return {name: StoredTensor(file, name) for file in _files(directory) for name in _names(file)}


def _files(directory: Path) -> list[Path]:
    """One file, or those that an index names."""
    if (directory / _FILE).is_file():
        return [directory / _FILE]
    if not (directory / _INDEX).is_file():
        raise ModelSourceError(f"{directory} has neither {_FILE} nor {_INDEX}")
    return sorted({directory / name for name in json.loads((directory / _INDEX).read_text())["weight_map"].values()})


def _names(file: Path) -> Iterator[str]:
    with safe_open(file, framework="pt") as opened:
        yield from opened.keys()
