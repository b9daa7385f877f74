"""The failure of a command."""

from __future__ import annotations


class CommandError(Exception):
    """A failure to show to the user: what is wrong and, where there is something, what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what.rstrip('.')}; {remedy}" if remedy else what)
