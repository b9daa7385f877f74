"""What `metronome run` asks: texts to continue, with lengths and sampling as mixed as real traffic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path

from metronome_cli.errors import CommandError
from metronome_client import GenerateOptions

_MAX_TOKENS = (96, 80, 128, 112, 24, 64, 48, 96, 64)
_SAMPLED_EVERY = 4  # of each four requests one is sampled, the others are greedy


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """One request to send. `name` is unique in the workload, the request's id among all runs."""

    name: str
    prompt: str
    options: GenerateOptions


def load_prompts(directory: Path | None) -> dict[str, str]:
    """Read the prompts by name, `*.txt` in the order of their file names; the built-in ones without a directory."""
    source = files("metronome_cli").joinpath("prompts") if directory is None else directory
    try:
        paths = sorted((path for path in source.iterdir() if path.name.endswith(".txt")), key=lambda path: path.name)
        # A prompt ends with its last word: a newline after it would end the text that the model is to continue.
        return {
            path.name.removesuffix(".txt").lstrip("0123456789-"): path.read_text("utf-8").rstrip() for path in paths
        }
    except (OSError, UnicodeError) as error:
        raise CommandError(f"cannot read the prompts in {directory}: {error}", "give UTF-8 text files") from None


def build_workload(prompts: dict[str, str], num_requests: int | None, run_id: str) -> list[WorkloadRequest]:
    """Make the requests: each prompt once, or as many as asked for, over and over the prompts.

    `run_id` sets their ids apart from those of other runs on the same executor.
    """
    if not prompts:
        raise CommandError("there are no prompts", "give a --prompts-dir that holds *.txt files")
    count = len(prompts) if num_requests is None else num_requests
    requests = []
    for index, (prompt_name, prompt) in enumerate(islice(cycle(prompts.items()), count)):
        name = prompt_name if index < len(prompts) else f"{prompt_name}-{index // len(prompts) + 1}"
        options = _options(index, request_id=f"{name}-{run_id}")
        requests.append(WorkloadRequest(name=name, prompt=prompt, options=options))
    return requests


def _options(index: int, request_id: str) -> GenerateOptions:
    max_tokens = _MAX_TOKENS[index % len(_MAX_TOKENS)]
    greedy = GenerateOptions(request_id=request_id, max_tokens=max_tokens, temperature=0.0)
    if index % _SAMPLED_EVERY == _SAMPLED_EVERY - 1:
        return replace(greedy, temperature=0.8, top_p=0.95, seed=index)
    return greedy
