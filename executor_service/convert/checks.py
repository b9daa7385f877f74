"""Checks that fields of every message share: what is refused names the field, its value and what is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from executor_service.errors import ServiceError
from executor_service.text.errors import UnknownTokenError
from executor_service.text.tokenizer import Tokenizer
from metronome.inference.v1 import error_reason_pb2 as reasons

N = TypeVar("N", int, float)


def in_range(value: N, field: str, *, low: N, high: N | None = None) -> N:
    """The value. Raises ServiceError, also where it is no number."""
    if math.isnan(value) or value < low or (high is not None and value > high):
        raise out_of_range(field, value, f"at least {low}" if high is None else f"{low} to {high}")
    return value


def at_most(count: int, field: str, most: int, what: str) -> None:
    """Raises ServiceError where a list has more entries than it may."""
    if count > most:
        raise out_of_range(field, f"{count} {what}", f"at most {most}")


def of_vocabulary(token_ids: Sequence[int], field: str, tokenizer: Tokenizer) -> None:
    """Raises ServiceError that names the first id that the model does not have."""
    try:
        tokenizer.validate(token_ids)
    except UnknownTokenError as error:
        raise unknown_token(error, f"{field}[{error.position}]") from error


def out_of_range(field: str, value: object, expected: str) -> ServiceError:
    return ServiceError(
        reasons.ERROR_REASON_OUT_OF_RANGE,
        f"{field} is {value}, it must be {expected}",
        field=field,
        metadata={"value": str(value)},
    )


def unknown_token(error: UnknownTokenError, field: str = "") -> ServiceError:
    """``field``: where the id stands; empty where it came of text."""
    return ServiceError(
        reasons.ERROR_REASON_UNKNOWN_TOKEN, str(error), field=field, metadata={"value": str(error.token_id)}
    )
