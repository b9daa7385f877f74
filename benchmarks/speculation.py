"""Output tokens per second with speculation by n-gram look-up against without, and how many drafts prove right.

The whole stack over gRPC, two executors of which one works at a time, in turns. Two tasks, each by as many requests at
once as --concurrency says:

- rewriting: the prompt shows a text and its copy, then another text; greedy. The answer repeats the second text.
- telling: the prompt begins a story, told at temperature 1. The answer repeats nothing but by chance.

Both sides give the same tokens in float32; in bfloat16 texts may part where two tokens are nearly as likely, so how
many answers were the same is told.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.report import Figure, print_json, print_table
from harness.stack import local_stack
from harness.workload import corpus_tokens
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient, Delta, GenerateOptions

COPY = "\n\nThe same text again:\n\n"
NEXT = "\n\nAnother text:\n\n"
NUM_TEXT_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    name: str
    prompts: Sequence[Sequence[int]]
    options: GenerateOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One repetition of a task on one executor."""

    answers: list[list[int]]
    tokens_per_second: float
    num_drafts: int
    num_accepted: int


def main() -> int:
    args = _arguments()
    from transformers import AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    tokenize = AutoTokenizer.from_pretrained(directory).encode
    plain = ExecutorSettings(model=args.model, dtype=args.dtype, prefix_cache="off")
    speculating = ExecutorSettings(
        model=args.model, dtype=args.dtype, prefix_cache="off", speculative_drafts=args.drafts
    )
    figures: list[Figure] = []
    with local_stack(plain) as without, local_stack(speculating) as with_drafts:
        for address in (without, with_drafts):
            asyncio.run(_run(address, Task(name="", prompts=[[2, 3, 4]] * 4, options=GenerateOptions(max_tokens=8))))
        for concurrency in args.concurrency:
            for task in _tasks(tokenize, concurrency, args.num_output_tokens):
                pairs = [_pair(without, with_drafts, task) for _ in range(args.reps)]
                figures.append(_figure(task, concurrency, pairs, args))
    title = f"model {args.model}, dtype {args.dtype}, at most {args.drafts} drafts, reps {args.reps}"
    if args.json:
        print_json(figures)
    else:
        print_table(title, figures)
    return 0


def _pair(without: str, with_drafts: str, task: Task) -> tuple[Run, Run]:
    return asyncio.run(_run(without, task)), asyncio.run(_run(with_drafts, task))


def _figure(task: Task, concurrency: int, pairs: Sequence[tuple[Run, Run]], args: argparse.Namespace) -> Figure:
    num_drafts = sum(run.num_drafts for _, run in pairs)
    num_accepted = sum(run.num_accepted for _, run in pairs)
    same = [a == b for plain, run in pairs for a, b in zip(plain.answers, run.answers, strict=True)]
    rate = f"{num_accepted} of {num_drafts} drafts right" if num_drafts else "no drafts"
    _say(f"{task.name}, {concurrency} at once: {rate}, {sum(same)} of {len(same)} answers the same")
    return Figure(
        name=f"{task.name}, {concurrency} at once ({rate})",
        unit="tok/s",
        samples=[run.tokens_per_second for _, run in pairs],
        sizes={
            "model": args.model,
            "dtype": args.dtype,
            "max_num_drafts": args.drafts,
            "concurrency": concurrency,
            "num_output_tokens": args.num_output_tokens,
            "num_drafts": num_drafts,
            "num_accepted": num_accepted,
            "num_same_answers": sum(same),
            "num_answers": len(same),
        },
        reference="without",
        reference_samples=[plain.tokens_per_second for plain, _ in pairs],
    )


def _tasks(tokenize: object, concurrency: int, num_output_tokens: int) -> list[Task]:
    start_token, corpus = corpus_tokens(tokenize)  # type: ignore[arg-type]  # a method of transformers
    copy, following = (tokenize(words)[1:] for words in (COPY, NEXT))  # type: ignore[operator]
    texts = [corpus[start : start + NUM_TEXT_TOKENS] for start in range(0, len(corpus), NUM_TEXT_TOKENS)]
    shown = [*texts[0], *copy, *texts[0], *following]
    told = texts[1 : 1 + concurrency]
    assert len(told) == concurrency, "the texts are too short for so many requests"
    greedy = GenerateOptions(max_tokens=num_output_tokens, temperature=0, ignore_eos=True)
    free = GenerateOptions(max_tokens=num_output_tokens, temperature=1.0, seed=7, ignore_eos=True)
    return [
        Task(name="rewriting", prompts=[[start_token, *shown, *text, *copy] for text in told], options=greedy),
        Task(name="telling", prompts=[[start_token, *text] for text in told], options=free),
    ]


async def _run(address: str, task: Task) -> Run:
    async with AsyncInferenceClient(address) as client:

        async def answer(prompt: Sequence[int]) -> list[int]:
            deltas = [event async for event in client.generate(prompt, task.options) if isinstance(event, Delta)]
            return [token_id for delta in deltas for token_id in delta.token_ids]

        before = (await client.state()).counters
        started = time.perf_counter()
        answers = list(await asyncio.gather(*(answer(prompt) for prompt in task.prompts)))
        seconds = time.perf_counter() - started
        after = (await client.state()).counters
    return Run(
        answers=answers,
        tokens_per_second=sum(map(len, answers)) / seconds,
        num_drafts=after.num_draft_tokens - before.num_draft_tokens,
        num_accepted=after.num_accepted_draft_tokens - before.num_accepted_draft_tokens,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--drafts", type=int, default=4, help="most tokens guessed for a request and pass")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16], help="requests at once")
    parser.add_argument("--num-output-tokens", type=int, default=96)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
