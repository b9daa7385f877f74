"""GGUF files, converted once into directories that load in seconds.

transformers itself reads the file (names, norm offsets, dequantising, tokenizer), which takes about a minute for a
model of 270M parameters. The result is kept in the user's cache, keyed by the SHA-256 of the file:

    <cache>/gguf/<sha256>/  config.json  generation_config.json  model.safetensors  tokenizer.json ...  stamp.json

Rules:
- Weights are stored in float32: dequantised values are exact there, and any dtype can be loaded from it.
- The directory is written under a temporary name and renamed, so it is whole or absent.
- One process converts, which takes gigabytes of memory; others that want the same file wait for it. A file beside the
  directory is locked meanwhile, and the system unlocks it if the process dies.
- The stamp holds size, time and digest of each file. A size that differs means damage; a time that differs means that
  the digest decides. Damaged directories are converted again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from executor_service.model.errors import as_model_source_error

_STAMP = "stamp.json"
# Part of the stamp: a directory written under other rules counts as damaged.
_FORMAT = 1


def default_cache_dir() -> Path:
    """`$METRONOME_CACHE`, else `metronome` in `$XDG_CACHE_HOME` or `~/.cache`."""
    if explicit := os.environ.get("METRONOME_CACHE"):
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metronome"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def find_converted(sha256: str, cache_dir: Path) -> Path | None:
    """The directory converted from the GGUF file of this digest, if it is there and undamaged."""
    directory = _directory_for(sha256, cache_dir)
    return directory if _is_intact(directory) else None


def convert(gguf_file: Path, sha256: str, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Convert the file of this digest into the cache and return the directory. Raises ModelSourceError."""
    target = _directory_for(sha256, cache_dir)
    with as_model_source_error(f"cannot convert {gguf_file.name}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _alone(target.with_suffix(".lock"), progress):
            if _is_intact(target):  # by the process that was waited for
                return target
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="converting-") as temporary:
                written = Path(temporary) / "model"
                written.mkdir()
                _write_directory(gguf_file, written, progress)
                _write_stamp(written)
                if target.exists():
                    shutil.rmtree(target)
                written.rename(target)
    progress(f"kept the converted model in {target}")
    return target


@contextmanager
def _alone(lock_file: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other process is in here with the same file."""
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that converts the same model")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _directory_for(sha256: str, cache_dir: Path) -> Path:
    return cache_dir / "gguf" / sha256


def _write_directory(gguf_file: Path, directory: Path, progress: Callable[[str], None]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    progress(f"converting {gguf_file.name} once, a minute or more: tokenizer")
    _save_tokenizer(AutoTokenizer.from_pretrained(**source), directory)
    progress(f"converting {gguf_file.name} once: weights")
    # Unless told to dequantise, transformers may keep packed weights and compute in float32 whatever dtype is asked.
    unpacked = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, quantization_config=unpacked)
    progress(f"converting {gguf_file.name} once: writing safetensors")
    _save_model(model, directory)


def _save_tokenizer(tokenizer: Any, directory: Path) -> None:
    """What `save_pretrained` writes, cut down to load in a quarter of the time: the pipeline as compact JSON; a class
    that takes it as it is, instead of building it again from vocabulary and merges; and the tokens that were added,
    which are else looked up in the pipeline's JSON, all of it parsed once more."""
    tokenizer.save_pretrained(directory)
    pipeline = with_joined_merges(tokenizer.backend_tokenizer.to_str())
    (directory / "tokenizer.json").write_text(pipeline, encoding="utf-8")
    config_file = directory / "tokenizer_config.json"
    config = json.loads(config_file.read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {id: token.__getstate__() for id, token in tokenizer.added_tokens_decoder.items()},
    }
    config_file.write_text(json.dumps(config, indent=2) + "\n")


def with_joined_merges(description: str) -> str:
    """The description of a tokenizer, each of its merges one text, ``"a b"``, and not a list of two: a fifth less to
    read. As it was where that could not be told apart, of tokens with spaces."""
    pipeline = json.loads(description)
    merges = pipeline["model"].get("merges")
    if not merges or any(not isinstance(merge, list) or " " in "".join(merge) for merge in merges):
        return description
    pipeline["model"]["merges"] = [" ".join(merge) for merge in merges]
    return json.dumps(pipeline, ensure_ascii=False, separators=(",", ":"))


def _save_model(model: Any, directory: Path) -> None:
    """What `save_pretrained` would write, which refuses a model that came from GGUF."""
    from safetensors.torch import save_file

    tied = set(model.all_tied_weights_keys)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        config.pop(key, None)
    config |= {"architectures": [type(model).__name__], "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model.generation_config.save_pretrained(directory)


def _write_stamp(directory: Path) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": file_sha256(path)}
        for path in sorted(directory.iterdir())
    }
    (directory / _STAMP).write_text(json.dumps({"format": _FORMAT, "files": files}, indent=2) + "\n")


def _is_intact(directory: Path) -> bool:
    try:
        stamp = json.loads((directory / _STAMP).read_text())
        return stamp["format"] == _FORMAT and all(
            _is_file_intact(directory / name, expected) for name, expected in stamp["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent, or not a stamp that we wrote
        return False


def _is_file_intact(path: Path, expected: dict[str, Any]) -> bool:
    status = path.stat()
    if status.st_size != expected["size"]:
        return False
    return bool(status.st_mtime_ns == expected["mtime_ns"] or file_sha256(path) == expected["sha256"])
