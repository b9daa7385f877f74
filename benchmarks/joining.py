"""What a long prompt does to those that decode when it joins them: their inter-token latency with and without it.

--num-decoding requests stream from an executor with default settings. Once each has --first tokens a prompt of
--num-prompt-tokens joins them; in turns with a run in which nobody does. Compared are the gaps between tokens of those
that decode, over the next --window tokens of each, and beside them stands what the bound costs the one that joins: its
time to first token. No two prompts begin alike, so nothing of them is in the prefix cache.

Exit status 1 if the p99 with it is above --max-ratio times that without it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.report import Figure, print_json, print_table
from harness.stack import local_stack, stream, watched_passes
from harness.timings import Answer, inter_token_latencies_ms, percentile, times_to_first_token_ms
from harness.workload import Job, corpus_tokens
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient

NUM_DECODING_PROMPT_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Milliseconds. `first_token_ms`: of the one that joined, 0 where nobody did. `chunks`: its tokens in each pass."""

    gaps_ms: Sequence[float]
    first_token_ms: float
    chunks: Sequence[int]


class Prompts:
    """Prompts of real text, each of which begins at another place."""

    def __init__(self, start_token: int, tokens: Sequence[int]) -> None:
        self._start_token, self._tokens = start_token, tokens
        self._num_taken = 0

    def take(self, num_tokens: int) -> tuple[int, ...]:
        # A prime step: places repeat only when all have been used.
        start = self._num_taken * 7919 % (len(self._tokens) - num_tokens)
        self._num_taken += 1
        return (self._start_token, *self._tokens[start : start + num_tokens - 1])


def main() -> int:
    args = _arguments()
    from transformers import AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    prompts = Prompts(*corpus_tokens(AutoTokenizer.from_pretrained(directory).encode))
    with local_stack(ExecutorSettings(model=args.model, dtype=args.dtype, profile=args.profile)) as address:
        asyncio.run(_run(address, prompts, args, joins=True))  # warms up
        pairs = [_pair(address, prompts, args, repetition) for repetition in range(args.reps)]
    without, joined = zip(*pairs, strict=True)
    sizes: dict[str, object] = {
        "model": args.model,
        "num_decoding": args.num_decoding,
        "num_prompt_tokens": args.num_prompt_tokens,
        "window": args.window,
        "profile": args.profile or "default",
        "reps": args.reps,
    }
    figures = [_gaps(f"ITL p{percent}", percent, joined, without, sizes) for percent in (99, 50)]
    first_token_ms = [run.first_token_ms for run in joined]
    figures.append(Figure(name="TTFT of the one that joins", unit="ms", samples=first_token_ms, sizes=sizes))
    if args.json:
        print_json(figures)
    else:
        print_table(", ".join(f"{name} {value}" for name, value in sizes.items()), figures)
    return 0 if figures[0].ratio <= args.max_ratio else 1


def _pair(address: str, prompts: Prompts, args: argparse.Namespace, repetition: int) -> tuple[Run, Run]:
    """Without and with, in an order that changes."""
    runs = {joins: asyncio.run(_run(address, prompts, args, joins=joins)) for joins in _order(repetition)}
    p99s = {joins: percentile(run.gaps_ms, 99) for joins, run in runs.items()}
    chunks = ", ".join(map(str, runs[True].chunks))
    _say(
        f"repetition {repetition + 1} of {args.reps}: p99 {p99s[False]:.0f} ms, then {p99s[True]:.0f}, chunks {chunks}"
    )
    return runs[False], runs[True]


def _order(repetition: int) -> tuple[bool, bool]:
    return (False, True) if repetition % 2 == 0 else (True, False)


def _gaps(name: str, percent: int, joined: Sequence[Run], without: Sequence[Run], sizes: dict[str, object]) -> Figure:
    return Figure(
        name=f"{name} of those that decode, when one joins",
        unit="ms",
        samples=[percentile(run.gaps_ms, percent) for run in joined],
        sizes={**sizes, "median_num_chunks": statistics.median(len(run.chunks) for run in joined)},
        reference="when nobody does",
        reference_samples=[percentile(run.gaps_ms, percent) for run in without],
    )


async def _run(address: str, prompts: Prompts, args: argparse.Namespace, *, joins: bool) -> Run:
    num_tokens = args.first + args.window
    decoding = [
        Job(prompt_token_ids=prompts.take(NUM_DECODING_PROMPT_TOKENS), num_output_tokens=num_tokens)
        for _ in range(args.num_decoding)
    ]
    joining = Job(prompt_token_ids=prompts.take(args.num_prompt_tokens), num_output_tokens=1)
    async with AsyncInferenceClient(address) as client, watched_passes(client) as passes:
        clock_zero = time.perf_counter()
        has_begun = [asyncio.Event() for _ in decoding]

        async def decode(job: Job, begun: asyncio.Event) -> Answer:
            return await stream(
                client, job, clock_zero=clock_zero, on_tokens=lambda num: begun.set() if num >= args.first else None
            )

        answers = [asyncio.create_task(decode(*pair)) for pair in zip(decoding, has_begun, strict=True)]
        for begun in has_begun:
            await begun.wait()
        since_s, since_us, first_token_ms = time.perf_counter() - clock_zero, time.time_ns() // 1000, 0.0
        if joins:
            joined = await stream(client, joining, clock_zero=clock_zero)
            (first_token_ms,) = times_to_first_token_ms([joined])
        done = await asyncio.gather(*answers)
    until_s = min(answer.token_times_s[-1] for answer in done)
    return Run(
        gaps_ms=inter_token_latencies_ms(done, since_s=since_s, until_s=until_s),
        first_token_ms=first_token_ms,
        chunks=[
            each.num_prefill_tokens for each in passes if each.num_prefill_tokens and each.start_time_us > since_us
        ],
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--profile", help="the scheduler's profile (default: the scheduler's default)")
    parser.add_argument("--num-decoding", type=int, default=16)
    parser.add_argument("--num-prompt-tokens", type=int, default=1500, help="of the prompt that joins")
    parser.add_argument("--first", type=int, default=8, help="tokens that each has before the prompt joins")
    parser.add_argument("--window", type=int, default=100, help="tokens of each after that")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--max-ratio", type=float, default=2.0, help="of the p99 with and without")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
