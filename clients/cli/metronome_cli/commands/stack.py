"""`metronome up`, `metronome down`, `metronome status`: a local stack that keeps running."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from metronome_cli.command_error import CommandError
from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors
from metronome_cli.notices import planning_failure_in_words
from metronome_cli.options import NAME, PORT, WholeNumber
from metronome_cli.progress_line import progress_line
from metronome_cli.stack.home import stack_home
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime, Service, is_serving
from metronome_cli.stack.stop import stop_all
from metronome_cli.trust import NO_TLS, Trust, trust_options
from metronome_client import InferenceClient


@click.command()
@click.option("--model", type=NAME, help="Model to run: gemma3-270m, a directory, a GGUF file or a Hugging Face id.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Number type of the model."
)
@click.option("--num-blocks", type=WholeNumber(1), help="KV blocks on the device.")
@click.option("--num-swap-blocks", type=WholeNumber(0), help="KV blocks of CPU swap space.")
@click.option("--profile", type=NAME, help="Profile that the executor asks the scheduler to plan by.")
@click.option("--scheduler-port", type=PORT, default=50051, show_default=True, help="0 takes a free one.")
@click.option("--executor-port", type=PORT, default=50052, show_default=True, help="0 takes a free one.")
@trust_options
def up(
    model: str | None,
    dtype: str | None,
    num_blocks: int | None,
    num_swap_blocks: int | None,
    profile: str | None,
    scheduler_port: int,
    executor_port: int,
    trust: Trust,
) -> None:
    """Start a local stack and leave it running.

    The stack is a scheduler and an executor on loopback. Its record and its logs are in $METRONOME_HOME (default:
    .metronome in the working directory). Services that are told to serve with TLS, by their environment
    (METRONOME_EXECUTOR_TLS_CERTIFICATE, ...), are asked with --tls-ca and --token-file, and so asks the executor.
    """
    executor = ExecutorSettings(
        model=model, dtype=dtype, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, profile=profile
    )
    settings = StackSettings(executor=executor, scheduler_port=scheduler_port, executor_port=executor_port, trust=trust)
    home = stack_home()
    with home.locked():
        if home.running():
            raise CommandError(
                f"a stack of {home.directory} runs already", "see `metronome status`, or stop it with `metronome down`"
            )

        def record_launched(services: Sequence[Service]) -> None:
            home.record(services, ())

        console = table_console()
        try:
            with progress_line(console) as show:
                stack = start_stack(
                    settings, home.directory, Lifetime.DETACHED, on_progress=show, on_launch=record_launched
                )
        except BaseException:
            home.forget()
            raise
        home.record(stack.services, (stack.scheduler_address, stack.executor_address))
    console.print(f"[green]ready[/]  scheduler {stack.scheduler_address}, executor {stack.executor_address}")
    console.print(f"Its record and its logs are in {home.directory}.", style="dim")
    console.print('Try `metronome generate "Once upon a time"`; stop with `metronome down`.', style="dim")


@click.command()
def down() -> None:
    """Stop the stack that `metronome up` started."""
    home = stack_home()
    with home.locked():
        running = home.running()
        stop_all(service.process for service in reversed(running))
        home.forget()
    stopped = " and ".join(service.name for service in reversed(running))
    click.echo(f"stopped {stopped}" if running else f"no stack of {home.directory} runs")


@click.command()
@trust_options
def status(trust: Trust) -> None:
    """Show what `metronome up` started."""
    home = stack_home()
    services = home.running()
    if not services:
        raise CommandError(
            f"no stack of {home.directory} runs", "start one with `metronome up`, or set METRONOME_HOME to another's"
        )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("service", "health", "address", "process", "log"):
        table.add_column(heading, overflow="fold")
    failures = []
    for service in services:
        way = trust.towards(service.address) if service.address else NO_TLS
        healthy = bool(service.address) and is_serving(service.address, way)
        health = Text("ready", style="green") if healthy else Text("not ready", style="yellow")
        table.add_row(service.name, health, service.address or "-", str(service.process.pid), str(service.log))
        if healthy and service.name == "executor":
            failures.append(_planning_failure(service.address, way))
    console = table_console()
    console.print(f"The stack of {home.directory}", style="dim")
    console.print(table)
    for failure in filter(None, failures):
        console.print(failure, style="yellow", markup=False)


def _planning_failure(address: str, trust: Trust) -> str:
    """Ask an executor why it gets no plans; empty where it gets them."""
    with executor_errors(address), InferenceClient(address, tls=trust.tls, token=trust.token) as client:
        return planning_failure_in_words(client.state().planning_failure)
