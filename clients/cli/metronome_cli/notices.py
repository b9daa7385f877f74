"""That no scheduler gives plans, in words: the executor says why, and this what it means to those who wait."""

from __future__ import annotations

import click

from metronome_client import Waiting


def planning_failure_in_words(failure: str) -> str:
    """Complete what an executor says about its planning; empty where it says nothing."""
    return f"{failure.rstrip('.')}; waiting requests stay" if failure else ""


class WaitNotices:
    """Shows on stderr, beside an answer, why it waits: once for each reason, not once a heartbeat."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, event: Waiting) -> None:
        """Print the reason where it is a new one."""
        if event.detail != self._shown:
            self._shown = event.detail
            click.secho(planning_failure_in_words(event.detail), dim=True, err=True)
