"""`metronome replay`: plan recorded states again, and see whether, or how, the plans differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias

import click
from rich.console import Console
from rich.text import Text

from metronome.scheduler.v1 import plan_pb2, scheduler_pb2
from metronome_cli.consoles import table_console
from metronome_cli.errors import CommandError, scheduler_errors
from metronome_cli.options import scheduler_option
from metronome_cli.plan_difference import Tally, decision_lines, difference_lines, tally_view
from metronome_cli.policy_choice import choose_policy, policy_options
from metronome_cli.recordings import Recorded, read_recordings
from metronome_cli.trust import Trust, trust_options
from metronome_client import MetronomeError, SchedulerClient

Lines: TypeAlias = Callable[[plan_pb2.ExecutorPlan, plan_pb2.ExecutorPlan], Iterable[str]]

EXIT_DIFFERENT = 1
_STYLES = {"-": "red", "+": "green"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A recorded plan and the one that the scheduler makes now."""

    place: str
    recorded: scheduler_pb2.PlanResponse
    replayed: scheduler_pb2.PlanResponse

    @property
    def is_same(self) -> bool:
        """Whether they are the same byte for byte."""
        return self.recorded.SerializeToString() == self.replayed.SerializeToString()

    def pairs(self) -> Iterator[tuple[plan_pb2.ExecutorPlan, plan_pb2.ExecutorPlan]]:
        """Give the plans for each executor, as recorded and as replayed."""
        yield from zip_longest(self.recorded.plans, self.replayed.plans, fillvalue=plan_pb2.ExecutorPlan())


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@scheduler_option
@trust_options
@policy_options
@click.option("--diff", "show_diff", is_flag=True, help="With another policy: show each plan that differs.")
@click.pass_context
def replay(
    context: click.Context,
    files: tuple[Path, ...],
    scheduler: str,
    trust: Trust,
    profile: str | None,
    policy_file: str | None,
    show_diff: bool,
) -> None:
    """Plan every state of recordings again.

    Without --profile and --policy each plan must come out as recorded, byte for byte: the first that does not is shown,
    and the exit status is 1. With one of them, sum up what that policy would have decided otherwise.
    """
    console = table_console()
    choice = scheduler_pb2.PlanRequest()
    choose_policy(choice, profile, policy_file)
    with scheduler_errors(scheduler), SchedulerClient(scheduler, tls=trust.tls, token=trust.token) as client:
        replays = _replays(client, read_recordings(files), choice)
        if choice.WhichOneof("policy_choice") is not None:
            _sum_up(replays, console, show_diff=show_diff)
        elif not _is_reproduced(replays, console):
            context.exit(EXIT_DIFFERENT)


def _replays(
    client: SchedulerClient, recorded: Iterable[Recorded], choice: scheduler_pb2.PlanRequest
) -> Iterator[Replayed]:
    """Plan each record again, by the policy of `choice` where it has one."""
    for item in recorded:
        request = item.record.request
        request.MergeFrom(choice)
        try:
            response = client.plan(request)
        except MetronomeError as error:
            if not error.reason:
                raise
            raise CommandError(f"{item.place}: {error.message}") from None
        yield Replayed(place=item.place, recorded=item.record.response, replayed=response)


def _is_reproduced(replays: Iterable[Replayed], console: Console) -> bool:
    """Say whether all plans came out as recorded, and show the first that did not."""
    num_plans = 0
    for replayed in replays:
        if not replayed.is_same:
            console.print(f"{replayed.place}: the first that differs, after {num_plans:,} that do not")
            _show_lines(replayed, difference_lines, console)
            return False
        num_plans += 1
    _require_some(num_plans)
    console.print(f"{num_plans:,} plans: no difference")
    return True


def _sum_up(replays: Iterable[Replayed], console: Console, *, show_diff: bool) -> None:
    tally = Tally()
    for replayed in replays:
        for pair in replayed.pairs():
            tally.add(*pair)
        if show_diff:
            _show_lines(replayed, decision_lines, console)
    _require_some(tally.num_plans)
    console.print(f"{tally.num_plans:,} plans: {tally.num_different:,} decide otherwise")
    console.print(tally_view(tally))


def _show_lines(replayed: Replayed, lines_of: Lines, console: Console) -> None:
    for recorded, again in replayed.pairs():
        lines = list(lines_of(recorded, again))
        if lines:
            plan = recorded if recorded.executor_id else again
            console.print(Text.assemble((plan.executor_id, "bold"), f", iteration {plan.iteration:,}"))
        for line in lines:
            console.print(Text(f"  {line}", style=_STYLES.get(line[0], "")), soft_wrap=True)


def _require_some(num_plans: int) -> None:
    if num_plans == 0:
        raise CommandError("nothing is recorded there", "name files that --record-dir of a service made")
