"""What a caller can do wrong.

    SchedulerError
    ├── StateError              the state, or a plan to verify, is malformed
    ├── PolicyError             the policy is malformed
    │   └── PolicyConflictError its settings exclude each other
    └── UnknownProfileError     no profile has that name

Each names the field at fault by its path in the contract, and carries the figures of `ErrorReason` as metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class ErrorReason(Enum):
    """The reasons of error_reason.proto that this service has cause to give, by the same names."""

    MISSING_FIELD = auto()
    COLUMN_LENGTH = auto()
    DUPLICATE = auto()
    OUT_OF_RANGE = auto()
    INCONSISTENT = auto()
    UNKNOWN_VALUE = auto()
    UNKNOWN_PROFILE = auto()
    POLICY_CONFLICT = auto()


class SchedulerError(Exception):
    """A request that cannot be planned."""

    def __init__(
        self, field: str, reason: ErrorReason, description: str, metadata: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{field}: {description}")
        self.field = field
        self.reason = reason
        self.description = description
        self.metadata = {"field": field, **(metadata or {})}


class StateError(SchedulerError):
    """The state contradicts the contract or itself."""


class PolicyError(SchedulerError):
    """A setting of the policy is out of its range, or unknown."""


class PolicyConflictError(PolicyError):
    """Settings of the policy exclude each other."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(field, ErrorReason.POLICY_CONFLICT, description)


class UnknownProfileError(SchedulerError):
    """No profile has that name."""

    def __init__(self, field: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            field,
            ErrorReason.UNKNOWN_PROFILE,
            f"no profile is named {name!r}; there are {', '.join(known)}",
            {"value": name},
        )
