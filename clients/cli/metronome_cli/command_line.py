"""The command line: its subcommands, and how each of them fails.

A failure is one line on stderr, `error: what is wrong; what to do`, never a traceback. Exit status: 0 done, 1 failed,
2 the command line is at fault, 130 Ctrl-C. Where the reader of stdout goes away the command ends with 1 and without a
word; click sees to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import click

from metronome_cli.command_error import CommandError
from metronome_cli.commands.calibrate import calibrate
from metronome_cli.commands.capacity import capacity
from metronome_cli.commands.chat import chat
from metronome_cli.commands.compare import compare
from metronome_cli.commands.conformance import conformance
from metronome_cli.commands.explain import explain
from metronome_cli.commands.generate import generate
from metronome_cli.commands.load import load
from metronome_cli.commands.plan import plan
from metronome_cli.commands.replay import replay
from metronome_cli.commands.run import run
from metronome_cli.commands.simulate import simulate
from metronome_cli.commands.stack import down, status, up
from metronome_cli.commands.state import state
from metronome_cli.commands.timeline import timeline
from metronome_cli.commands.top import top
from metronome_cli.commands.verify import verify

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("metronome-llm"), prog_name="metronome")
def metronome() -> None:
    """Schedule LLM inference one iteration at a time: generate, look into an executor's books, ask for plans."""


COMMANDS = (
    *(run, up, down, status, generate, chat, state, plan, explain, verify, replay, timeline),
    *(top, conformance, simulate, compare, capacity, calibrate, load),
)
for command in COMMANDS:
    metronome.add_command(command)


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit status."""
    try:
        return metronome.main(args=arguments, prog_name="metronome", standalone_mode=False) or 0
    except CommandError as error:
        _print_error(str(error))
        return EXIT_FAILED
    except click.exceptions.NoArgsIsHelpError as error:  # `metronome` alone: its message is the help page
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        _print_error(f"{error.format_message()} See `{_command_path(error)} --help`.")
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except OSError as error:  # what commands read and start is checked where they do; this is the output
        _print_error(f"cannot write {error.filename or 'the output'}: {error.strerror}")
        return EXIT_FAILED


def _print_error(line: str) -> None:
    click.echo(click.style("error:", fg="red", bold=True) + f" {' '.join(line.split())}", err=True)


def _command_path(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return context.command_path if context is not None else "metronome"
