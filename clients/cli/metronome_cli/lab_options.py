"""The options that the lab's commands share: what to play, on what, and what an answer must meet.

The lab is imported when one of its commands runs: it brings NumPy and the compiled planning core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from metronome_cli.command_error import CommandError
from metronome_cli.options import INT64, NAME, POSITIVE, WHOLE

if TYPE_CHECKING:
    from metronome_lab.figures import Targets
    from metronome_lab.runs import Scenario
    from metronome_lab.simulation import Fleet
    from scheduler_service.core.policy import Policy

_Command = TypeVar("_Command", bound=Callable[..., None])

HARDWARE = "a100-80gb-llama3-8b"
DEFAULT_PROFILE = "metronome"  # a scheduler's own, which is too much to import for a --help
PLACEMENTS = ("round-robin", "least-loaded", "cached-prefix", "power-of-two-choices")
POLICY = "FILE.json|SETTING=VALUE,..."
POLICY_HELP = "A policy, as a file or as settings: ordering=FAIR,chunk_size_tokens=256."
ESTIMATES = ("exact", "none")


class Estimates(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter here
    """How far expected lengths are off: `exact`, `none`, or the deviation of the logarithm of the factor."""

    name = "estimates"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Give 0 for exact ones and None for none."""
        if value is None or value == "none":
            return None
        try:
            sigma = 0.0 if value == "exact" else float(str(value))
        except ValueError:
            self.fail(f"{value!r} is none of exact, none and a number.", param, ctx)
        if not 0 <= sigma <= 10:
            self.fail(f"{value} is out of range; give 0 to 10.", param, ctx)
        return sigma


class Rates(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter here
    """Numbers with commas between them; nothing is none."""

    name = "rates"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Read them; each is more than 0."""
        if isinstance(value, tuple):
            return value
        try:
            rates = tuple(float(text) for text in str(value).split(",") if text.strip())
        except ValueError:
            self.fail(f"{value!r} is no list of numbers.", param, ctx)
        if not all(0 < rate < float("inf") for rate in rates):
            self.fail("a rate is more than 0.", param, ctx)
        return rates


def scenario_options(command: _Command) -> _Command:
    """Add the argument WORKLOAD and what is done to it, which arrive as the fields of a Scenario."""
    for option in reversed(
        (
            click.argument("workload", metavar="WORKLOAD", type=click.Path(path_type=Path)),
            click.option("--requests", type=POSITIVE, help="Play so many of its requests.  [default: all]"),
            click.option("--skip", type=WHOLE, default=0, help="Leave so many out at its beginning."),
            click.option("--rate", type=float, default=1.0, show_default=True, help="Times as fast as recorded."),
            click.option("--max-output-tokens", type=POSITIVE, help="Bound on each answer.  [default: its length]"),
            click.option(
                "--estimates",
                metavar="exact|none|SIGMA",
                type=Estimates(),
                default="exact",
                show_default=True,
                help="What the scheduler is told of lengths of answers; SIGMA: off by a log-normal factor.",
            ),
            click.option("--seed", type=INT64, default=0, show_default=True, help="Of all that is drawn."),
        )
    ):
        command = option(command)
    return command


def fleet_options(command: _Command) -> _Command:
    """Add --hardware, --limit, --executors and --placement."""
    for option in reversed(
        (
            click.option("--hardware", metavar="NAME|FILE.toml", help=f"What an executor is.  [default: {HARDWARE}]"),
            click.option(
                "--limit",
                "limits",
                metavar="NAME=N",
                multiple=True,
                help="Another limit than the hardware's: num_blocks, max_num_seqs, and so on.",
            ),
            click.option("--executors", type=POSITIVE, default=1, show_default=True, help="How many there are."),
            click.option(
                "--placement",
                type=click.Choice(PLACEMENTS),
                default="least-loaded",
                show_default=True,
                help="Which executor a request goes to.",
            ),
        )
    ):
        command = option(command)
    return command


def policies_options(command: _Command) -> _Command:
    """Add --profile and --policy, each any number of times."""
    profile = click.option("--profile", "profiles", type=NAME, multiple=True, help="A profile to play.  [default: all]")
    policy = click.option("--policy", "policy_texts", metavar=POLICY, type=NAME, multiple=True, help=POLICY_HELP)
    return profile(policy(command))


def jobs_option(command: _Command) -> _Command:
    """Add --jobs."""
    option = click.option("--jobs", type=WHOLE, default=0, help="Runs at a time.  [default: the cores that there are]")
    return option(command)


def target_options(command: _Command) -> _Command:
    """Add --ttft and --itl, milliseconds."""
    for option in reversed(
        (
            click.option("--ttft", type=POSITIVE, default=2000, show_default=True, help="Target to first token, ms."),
            click.option("--itl", type=POSITIVE, default=100, show_default=True, help="Target between tokens, ms."),
        )
    ):
        command = option(command)
    return command


def scenario_from(options: dict[str, Any]) -> Scenario:
    """Take its options out of `options`."""
    from metronome_lab.runs import Scenario

    skip, requests = options.pop("skip"), options.pop("requests")
    return Scenario(
        path=options.pop("workload"),
        start=skip,
        stop=None if requests is None else skip + requests,
        rate=options.pop("rate"),
        max_output_tokens=options.pop("max_output_tokens"),
        estimate_sigma=options.pop("estimates"),
        seed=options.pop("seed"),
    )


def fleet_from(options: dict[str, Any]) -> Fleet:
    """Take its options out of `options`."""
    from metronome_lab.hardware.profile import load_hardware, with_limits
    from metronome_lab.simulation import Fleet
    from scheduler_service.core.placement import Placement

    return Fleet(
        hardware=with_limits(load_hardware(options.pop("hardware") or HARDWARE), options.pop("limits")),
        num_executors=options.pop("executors"),
        placement=Placement[options.pop("placement").replace("-", "_").upper()],
    )


def policies_from(options: dict[str, Any]) -> dict[str, Policy]:
    """Take its options out of `options`. By name: that of a profile, of a file without its ending, or the settings."""
    from metronome_lab.policies import named_policy, policy_from_text, profile_names

    names, texts = options.pop("profiles"), options.pop("policy_texts")
    if not names and not texts:
        names = profile_names()
    return {name: named_policy(name) for name in names} | dict(map(policy_from_text, texts))


def jobs_from(jobs: int) -> int:
    """As many as were asked for; 0: one a core."""
    from metronome_lab.sweep import num_cores

    return jobs or num_cores()


def targets_from(options: dict[str, Any]) -> Targets:
    """Take its options out of `options`."""
    from metronome_lab.figures import Targets

    return Targets(ttft_us=options.pop("ttft") * 1000, itl_us=options.pop("itl") * 1000)


@contextmanager
def lab_errors() -> Iterator[None]:
    """Explain what is wrong with what the lab was given, and what it lacks."""
    try:
        from metronome_lab.errors import LabError
    except ModuleNotFoundError as error:
        raise CommandError(f"the lab needs {error.name}", "install 'metronome-llm[lab]'") from None
    try:
        yield
    except LabError as error:
        raise CommandError(error.what, error.remedy) from None
    except ModuleNotFoundError as error:
        raise CommandError(f"the lab needs {error.name}", "install 'metronome-llm[lab]'") from None


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give the function that shows how many are done; on stderr, and nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
