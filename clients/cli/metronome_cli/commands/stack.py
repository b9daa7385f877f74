"""`metronome up`, `metronome down`, `metronome status`: a local stack that keeps running."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metronome_cli.errors import CommandError
from metronome_cli.progress_line import progress_line
from metronome_cli.stack.home import stack_home
from metronome_cli.stack.local import StackSettings, start_stack
from metronome_cli.stack.services import ExecutorSettings
from metronome_cli.stack.start import Lifetime, Service, is_serving
from metronome_cli.stack.stop import stop_all

PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--model", help="Model to run: gemma3-270m, a directory, a GGUF file or a Hugging Face id.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "bfloat16", "float16"]), help="Number type of the model."
)
@click.option("--num-blocks", type=click.IntRange(1), help="KV blocks on the device.")
@click.option("--num-swap-blocks", type=click.IntRange(0), help="KV blocks of CPU swap space.")
@click.option("--profile", help="Profile that the executor asks the scheduler to plan by.")
@click.option("--scheduler-port", type=PORT, default=50051, show_default=True, help="0 takes a free one.")
@click.option("--executor-port", type=PORT, default=50052, show_default=True, help="0 takes a free one.")
def up(
    model: str | None,
    dtype: str | None,
    num_blocks: int | None,
    num_swap_blocks: int | None,
    profile: str | None,
    scheduler_port: int,
    executor_port: int,
) -> None:
    """Start a local stack and leave it running.

    The stack is a scheduler and an executor on loopback. Its record and its logs are in $METRONOME_HOME (default:
    .metronome in the working directory).
    """
    executor = ExecutorSettings(
        model=model, dtype=dtype, num_blocks=num_blocks, num_swap_blocks=num_swap_blocks, profile=profile
    )
    settings = StackSettings(executor=executor, scheduler_port=scheduler_port, executor_port=executor_port)
    home = stack_home()
    with home.locked():
        if home.running():
            raise CommandError(
                f"a stack of {home.directory} runs already", "see `metronome status`, or stop it with `metronome down`"
            )

        def record_launched(services: Sequence[Service]) -> None:
            home.record(services, ())

        console = Console(highlight=False)
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
    console.print('Try `metronome generate "Once upon a time"`; stop with `metronome down`.', style="dim")


@click.command()
def down() -> None:
    """Stop the stack that `metronome up` started."""
    home = stack_home()
    with home.locked():
        running = home.running()
        stop_all(service.process for service in reversed(running))
        home.forget()
    click.echo(f"stopped {' and '.join(service.name for service in reversed(running))}" if running else "nothing runs")


@click.command()
def status() -> None:
    """Show what `metronome up` started."""
    services = stack_home().running()
    if not services:
        raise CommandError(f"no stack of {stack_home().directory} runs", "start one with `metronome up`")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("service", "health", "address", "process", "log"):
        table.add_column(heading)
    for service in services:
        healthy = bool(service.address) and is_serving(service.address)
        health = Text("ready", style="green") if healthy else Text("not ready", style="yellow")
        table.add_row(service.name, health, service.address or "-", str(service.process.pid), str(service.log))
    Console(highlight=False).print(table)
