"""`metronome chat`: a conversation with a model that has a chat template."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from metronome_cli.errors import CommandError, executor_errors
from metronome_cli.inputs import STDIN, utf8
from metronome_cli.notices import WaitNotices
from metronome_cli.options import INT64, POSITIVE, TEXT, executor_option
from metronome_cli.trust import Trust, trust_options
from metronome_client import ChatMessage, Delta, GenerateOptions, InferenceClient, Waiting


@click.command()
@executor_option
@trust_options
@click.option("--system", type=TEXT, default="", help="Instruction that opens the conversation.")
@click.option("--max-tokens", type=POSITIVE, default=512, show_default=True, help="Most tokens of one answer.")
@click.option("--temperature", type=float, default=0.7, show_default=True, help="0: the most likely token always.")
@click.option("--seed", type=INT64, help="Make the choice repeatable.")
def chat(executor: str, trust: Trust, system: str, max_tokens: int, temperature: float, seed: int | None) -> None:
    """Talk with the model, one turn a line. Ctrl-D leaves."""
    options = GenerateOptions(max_tokens=max_tokens, temperature=temperature, seed=seed)
    messages = [ChatMessage("system", system)] if system else []
    with executor_errors(executor), InferenceClient(executor, tls=trust.tls, token=trust.token) as client:
        model = client.model_info()
        if not model.has_chat_template:
            raise CommandError(f"{model.model} has no chat template", "use `metronome generate`, which continues text")
        while (said := _read_turn()) is not None:
            messages.append(ChatMessage("user", said))
            messages.append(ChatMessage("assistant", _answer(client, messages, options)))


def _read_turn() -> str | None:
    """Read one line of the user; None at the end of the input. Skips empty lines."""
    while True:
        if sys.stdin.isatty():
            click.secho("> ", bold=True, nl=False)
        line = sys.stdin.buffer.readline()
        if not line:
            return None
        if said := utf8(line, STDIN).strip():
            return said


def _answer(client: InferenceClient, messages: list[ChatMessage], options: GenerateOptions) -> str:
    """Print the model's turn as it comes, and give it whole."""
    text, notices = "", WaitNotices()
    with closing(client.generate(messages, options)) as events:
        for event in events:
            if isinstance(event, Delta):
                click.echo(event.text, nl=False)
                text += event.text
            elif isinstance(event, Waiting):
                notices.show(event)
    click.echo()
    return text
