"""Models by their Hugging Face id: nothing is downloaded before a line has said what and how large."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from executor_service.model.errors import ModelSourceError, as_model_source_error

# What transformers needs of a repository; not the same weights again in other formats.
_PATTERNS = ["*.safetensors", "*.json", "tokenizer.model", "*.jinja", "merges.txt", "vocab.txt"]


def hub_directory(repo_id: str, progress: Callable[[str], None]) -> Path:
    """The local snapshot of a repository, downloaded if it is not complete. Raises ModelSourceError.

    Without a network a snapshot from earlier is used as it is.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = snapshot_download(repo_id, allow_patterns=_PATTERNS, dry_run=True)
    except GatedRepoError as error:
        raise ModelSourceError(
            f"{repo_id} asks for its terms to be accepted: do so at https://huggingface.co/{repo_id}, "
            "then log in with `hf auth login`"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelSourceError(
            f"no model {repo_id!r}: it is neither a path that exists nor a repository on Hugging Face that you can read"
        ) from error
    except OSError as error:  # offline, or Hugging Face cannot be reached
        return _earlier_snapshot(repo_id, error)
    missing = [file for file in files if not isinstance(file, str) and file.will_download]
    if missing:
        megabytes = sum(file.file_size or 0 for file in missing) / 1e6
        progress(f"downloading {repo_id} from Hugging Face: {len(missing)} files, {megabytes:,.0f} MB")
    with as_model_source_error(f"cannot download {repo_id}"):
        return Path(snapshot_download(repo_id, allow_patterns=_PATTERNS))


def _earlier_snapshot(repo_id: str, unreachable: OSError) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, allow_patterns=_PATTERNS, local_files_only=True))
    except OSError:
        raise ModelSourceError(
            f"no model {repo_id!r}: it is not a path that exists, Hugging Face cannot be reached, "
            "and no earlier download is in its cache"
        ) from unreachable
