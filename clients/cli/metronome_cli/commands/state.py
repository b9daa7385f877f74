"""`metronome state`: an executor's books."""

from __future__ import annotations

from contextlib import closing

import click
from google.protobuf import json_format
from rich.live import Live

from metronome_cli.books_view import books_view
from metronome_cli.consoles import table_console
from metronome_cli.errors import executor_errors
from metronome_cli.options import executor_option
from metronome_cli.trust import Trust, trust_options
from metronome_client import InferenceClient

_WATCH_INTERVAL_S = 0.25


@click.command()
@executor_option
@trust_options
@click.option("--watch", is_flag=True, help="Go on showing them as they change, until Ctrl-C.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print them as JSON, which `metronome plan` reads; one a line with --watch."
)
def state(executor: str, trust: Trust, watch: bool, as_json: bool) -> None:
    """Show an executor's books.

    That is its sizes, its blocks, its requests and what it has counted since it started.
    """
    with executor_errors(executor), InferenceClient(executor, tls=trust.tls, token=trust.token) as client:
        if not watch:
            books = client.state()
            if as_json:
                click.echo(json_format.MessageToJson(books))
            else:
                table_console().print(books_view(books))
        elif as_json:
            _watch_json(client)
        else:
            _watch(client)


def _watch(client: InferenceClient) -> None:
    console = table_console()
    with (
        Live(console=console, auto_refresh=False) as live,
        closing(client.watch_state(min_interval_s=_WATCH_INTERVAL_S)) as changes,
    ):
        for change in changes:
            live.update(books_view(change.state), refresh=True)


def _watch_json(client: InferenceClient) -> None:
    with closing(client.watch_state(min_interval_s=_WATCH_INTERVAL_S)) as changes:
        for change in changes:
            click.echo(json_format.MessageToJson(change, indent=None))
