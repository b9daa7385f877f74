"""Named policies: one TOML file each, in `profiles/`.

    description = "One sentence for people."

    [policy]
    ordering = "FIFO"            # a setting of policy.proto; those that are left out have their defaults

A file that has a key or value that nobody knows is refused when the service starts, not when the profile is asked for;
while it runs, `reload.py` reads them again.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler_service.convert import POLICY_ENUMS
from scheduler_service.core.errors import SchedulerError, UnknownProfileError
from scheduler_service.core.policy import Policy, check_policy

PROFILES_DIRECTORY = Path(__file__).parent / "profiles"
DEFAULT_PROFILE = "metronome"


class ProfileError(Exception):
    """A profile cannot be read, or the default one does not exist. The text says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A policy with a name."""

    name: str
    description: str
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The profiles of a service, by name, in ascending order of name."""

    by_name: Mapping[str, Profile]
    default: Profile

    def policy(self, name: str, field: str) -> Policy:
        """The policy of that name. Raises UnknownProfileError for `field`."""
        if name not in self.by_name:
            raise UnknownProfileError(field, name, tuple(self.by_name))
        return self.by_name[name].policy


def load_profiles(default: str = DEFAULT_PROFILE, directory: Path = PROFILES_DIRECTORY) -> Profiles:
    """Read every profile of a directory. Raises ProfileError."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise ProfileError(f"cannot read --profiles-directory {directory}: {error.strerror}") from error
    if not paths:
        raise ProfileError(f"--profiles-directory {directory} holds no profile, which is a file NAME.toml")
    by_name = {path.stem: _read(path) for path in paths}
    if default not in by_name:
        raise ProfileError(f"no profile is named {default!r}; choose one of {', '.join(by_name)} with --profile")
    return Profiles(by_name=by_name, default=by_name[default])


def _read(path: Path) -> Profile:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError(f"{path}: {error}") from error
    _refuse_unknown(path, content, ("description", "policy"))
    description, settings = content.get("description"), content.get("policy", {})
    if not isinstance(description, str) or not isinstance(settings, dict):
        raise ProfileError(f"{path}: needs a text `description` and a table `[policy]`")
    policy = _policy(path, settings)
    try:
        check_policy(policy, "policy")
    except SchedulerError as error:
        raise ProfileError(f"{path}: {error}") from error
    return Profile(name=path.stem, description=description, policy=policy)


def _policy(path: Path, settings: dict[str, Any]) -> Policy:
    _refuse_unknown(path, settings, [field.name for field in dataclasses.fields(Policy)])
    return Policy(**{name: _setting(path, name, value) for name, value in settings.items()})


def _setting(path: Path, name: str, value: Any) -> Any:
    enum = POLICY_ENUMS.get(name)
    if enum is None:
        if not _is_like(value, getattr(Policy(), name)):
            raise ProfileError(f"{path}: {name} cannot be {value!r}")
        return value
    if value not in list(enum.__members__):
        raise ProfileError(f"{path}: {name} is one of {', '.join(enum.__members__)}, not {value!r}")
    return enum[value]


def _is_like(value: Any, default: Any) -> bool:
    """Whether a TOML value can stand where the default does; unbounded settings (None) are whole numbers."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) if isinstance(default, float) else isinstance(value, int)


def _refuse_unknown(path: Path, content: Mapping[str, Any], known: tuple[str, ...] | list[str]) -> None:
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise ProfileError(f"{path}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
