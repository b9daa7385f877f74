"""What a caller can do wrong.

    SchedulerError
    ├── StateError              the state, or a plan to verify, is malformed
    ├── PolicyError             the policy is malformed
    │   └── PolicyConflictError its settings exclude each other
    ├── NotOfferedError         part of the contract that is not built yet
    │   └── UnsupportedPolicyError
    └── UnknownProfileError     no profile has that name

Each names the field at fault by its path in the contract, and carries the figures of `ErrorReason` as metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class ErrorReason(Enum):
    """The reasons of error_reason.proto, by the same names."""

    MISSING_FIELD = auto()
    COLUMN_LENGTH = auto()
    DUPLICATE = auto()
    OUT_OF_RANGE = auto()
    INCONSISTENT = auto()
    UNKNOWN_VALUE = auto()
    UNKNOWN_PROFILE = auto()
    POLICY_CONFLICT = auto()
    NOT_OFFERED = auto()


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


class NotOfferedError(SchedulerError):
    """Part of the contract that this service does not offer yet."""

    def __init__(self, field: str, value: str) -> None:
        super().__init__(field, ErrorReason.NOT_OFFERED, f"{value} is not offered yet", {"value": value})


class UnsupportedPolicyError(NotOfferedError):
    """A setting of the policy that is not offered yet."""


class UnknownProfileError(SchedulerError):
    """No profile has that name."""

    def __init__(self, field: str, name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            field,
            ErrorReason.UNKNOWN_PROFILE,
            f"no profile is named {name!r}; there are {', '.join(known)}",
            {"value": name},
        )
