"""What can be wrong with the model a user asked for.

ModelSourceError           the source does not exist, is not installed, cannot be reached or is damaged
└── UnsupportedModelError  it was found, but this executor cannot run it

Each message is one line for a user, who sees no traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ModelSourceError(Exception):
    """The model cannot be loaded from the source that was named."""


class UnsupportedModelError(ModelSourceError):
    """The source holds a model that paged attention cannot serve."""


@contextmanager
def as_model_source_error(failure: str) -> Iterator[None]:
    """Turn whatever a library raises inside into a ModelSourceError: what failed, then the library's first line.

    Libraries raise almost anything on a damaged file; the original stays the `__cause__`.
    """
    try:
        yield
    except ModelSourceError:
        raise
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelSourceError(f"{failure}: {first_line}") from error
