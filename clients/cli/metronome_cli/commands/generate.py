"""`metronome generate`: continue a text, printing the answer as it is computed."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections import defaultdict
from contextlib import closing

import click

from metronome_cli.errors import executor_errors
from metronome_cli.inputs import STDIN, read_text, utf8
from metronome_cli.logprobs_view import ToldLogprobs
from metronome_cli.notices import WaitNotices
from metronome_cli.options import INT32, INT64, POSITIVE, TEXT, WHOLE, executor_option
from metronome_cli.trust import Trust, trust_options
from metronome_client import Delta, Event, Finished, GenerateOptions, InferenceClient, Waiting


@click.command()
@click.argument("prompt", required=False)
@click.option("--prompt-file", metavar="FILE", help="Read the prompt from a file.")
@executor_option
@trust_options
@click.option(
    "--max-tokens", type=POSITIVE, default=128, show_default=True, help="Most tokens to generate, at least 1."
)
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0: the most likely token always.")
@click.option("--top-k", type=WHOLE, default=0, help="Choose among the k likeliest tokens; 0: among all.")
@click.option("--top-p", type=float, help="Choose among the likeliest tokens that together reach this probability.")
@click.option("--min-p", type=float, default=0.0, help="Choose among tokens this likely relative to the likeliest.")
@click.option("--repetition-penalty", type=float, help="Above 1: make tokens of prompt and answer less likely.")
@click.option("--presence-penalty", type=float, default=0.0, help="Make tokens of the answer less likely, -2 to 2.")
@click.option("--frequency-penalty", type=float, default=0.0, help="The same for each time that it holds them.")
@click.option("--seed", type=INT64, help="Make the choice repeatable.")
@click.option("--stop", type=TEXT, multiple=True, help="String that ends the answer; may be repeated.")
@click.option("--min-tokens", type=WHOLE, default=0, help="Tokens before an end token or a stop may end the answer.")
@click.option("--ignore-eos", is_flag=True, help="Go on past the model's end tokens.")
@click.option("--json-schema", "json_schema_file", metavar="FILE", help="The answer is JSON of this JSON Schema.")
@click.option("--regex", type=TEXT, help="The answer matches this regular expression.")
@click.option("--grammar", "grammar_file", metavar="FILE", help="The answer is of this grammar, in Lark notation.")
@click.option("--logprobs", type=WHOLE, help="Tell log-probabilities, with so many likeliest tokens at each.")
@click.option("--prompt-logprobs", type=WHOLE, help="The same for the prompt.")
@click.option("--echo", is_flag=True, help="Print the prompt before the answer.")
@click.option("--n", type=POSITIVE, default=1, help="Answers to give.")
@click.option("--best-of", type=POSITIVE, help="Answers to compute, of which the --n likeliest are given.")
@click.option("--priority", type=INT32, default=0, help="Larger is more important.")
@click.option("--tenant", type=TEXT, default="", help="Whose request it is.")
@click.option("--json", "as_json", is_flag=True, help="Print each event as one JSON object a line.")
def generate(
    prompt: str | None,
    prompt_file: str | None,
    executor: str,
    trust: Trust,
    as_json: bool,
    json_schema_file: str | None,
    grammar_file: str | None,
    **sampling: object,
) -> None:
    """Continue a PROMPT (`-`: stdin)."""
    if sum(form is not None for form in (json_schema_file, grammar_file, sampling["regex"])) > 1:
        raise click.UsageError("Give one of --json-schema, --regex and --grammar.")
    text = read_prompt(prompt, prompt_file)
    options = GenerateOptions(
        json_schema=None if json_schema_file is None else read_text(json_schema_file),
        grammar=None if grammar_file is None else read_text(grammar_file),
        **sampling,  # type: ignore[arg-type]  # click has checked them
    )
    show, notices = _show_json if as_json else _TextView(options.n or 1).show, WaitNotices()
    told = ToldLogprobs()
    with (
        executor_errors(executor),
        InferenceClient(executor, tls=trust.tls, token=trust.token) as client,
        closing(client.generate(text, options)) as events,
    ):
        for event in events:
            if isinstance(event, Waiting):
                notices.show(event)
            show(event)
            if isinstance(event, Delta):
                told.hear(event)
        if not as_json:
            told.show(client, text)


def read_prompt(prompt: str | None, prompt_file: str | None) -> str:
    """Take the prompt from where the user put it. Raises `CommandError` for text that is not UTF-8."""
    match prompt, prompt_file:
        case None, str(path):
            return read_text(path)
        case "-", None:
            return read_text(STDIN)
        case str(text), None:
            return utf8(os.fsencode(text), "the prompt")
        case _:
            raise click.UsageError("Give either a PROMPT or --prompt-file.")


def event_as_json(event: Event) -> str:
    """Write an event as one JSON object: its kind as `event`, then its fields; log-probabilities only if any."""

    def plain(value: object) -> object:
        return value.name if isinstance(value, enum.Enum) else value

    fields = dataclasses.asdict(event)
    for name in ("logprobs", "prompt_logprobs"):
        if not fields.get(name):
            fields.pop(name, None)
    return json.dumps({"event": type(event).__name__.lower(), **fields}, default=plain, ensure_ascii=False)


def _show_json(event: Event) -> None:
    click.echo(event_as_json(event))


class _TextView:
    """An answer as it comes; of several, each as a whole when it is complete, under its number."""

    def __init__(self, num_answers: int) -> None:
        self._is_single = num_answers == 1
        self._texts: defaultdict[int, str] = defaultdict(str)

    def show(self, event: Event) -> None:
        """Print what an event tells people."""
        match event:
            case Delta() if self._is_single:
                click.echo(event.text, nl=False)
            case Delta():
                self._texts[event.index] += event.text
            case Finished() if self._is_single:
                click.echo()
            case Finished():
                click.echo(f"--- {event.index + 1}\n{self._texts[event.index]}")
            case _:
                pass
