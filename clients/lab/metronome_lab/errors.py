"""What is wrong with what the lab was given."""

from __future__ import annotations


class LabError(Exception):
    """A trace, a profile or a setting that makes no run: what is wrong and, where there is something, what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
