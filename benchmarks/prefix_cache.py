"""Time to first token of a prompt whose beginning is in the prefix cache, against one whose beginning is not.

The whole stack over gRPC, one request at a time. A prompt is a beginning of --num-prefix-tokens and a question of
--num-question-tokens after it, all cut from real text. In turns: a beginning that was never seen, then the same
beginning with another question. Times are taken at the client, from the call to the first token.

Exit status 1 if the least time without the cache is below --min-ratio times the least with it, or if the executor did
not say that it reused every whole block of the beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.report import Figure, print_json, print_table
from harness.stack import local_stack
from harness.workload import corpus_tokens
from metronome_cli.stack.services import ExecutorSettings
from metronome_client import AsyncInferenceClient, Delta, Finished, GenerateOptions

BLOCK_SIZE = 16  # the executor's default


def main() -> int:
    args = _arguments()
    from transformers import AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    start_token, tokens = corpus_tokens(AutoTokenizer.from_pretrained(directory).encode)
    with local_stack(ExecutorSettings(model=args.model, dtype=args.dtype)) as address:
        uncached, cached, num_reused = asyncio.run(_measure(address, start_token, tokens, args))
    sizes = {
        "model": args.model,
        "dtype": args.dtype,
        "num_prefix_tokens": args.num_prefix_tokens,
        "num_question_tokens": args.num_question_tokens,
        "num_reused_tokens": min(num_reused),
        "reps": args.reps,
    }
    figure = Figure(
        name="time to first token, beginning cached",
        unit="ms",
        samples=cached,
        sizes=sizes,
        reference="not cached",
        reference_samples=uncached,
    )
    if args.json:
        print_json([figure])
    else:
        print_table(", ".join(f"{name} {value}" for name, value in sizes.items()), [figure])
    ratio = min(uncached) / min(cached)
    _say(f"least times: {min(uncached):.1f} ms without, {min(cached):.1f} ms with the cache, {ratio:.1f} times less")
    reused_all = min(num_reused) == args.num_prefix_tokens // BLOCK_SIZE * BLOCK_SIZE
    return 0 if reused_all and ratio >= args.min_ratio else 1


async def _measure(
    address: str, start_token: int, tokens: Sequence[int], args: argparse.Namespace
) -> tuple[list[float], list[float], list[int]]:
    """Times in milliseconds without and with the cache, pair by pair, and the tokens that were reused."""
    uncached: list[float] = []
    cached: list[float] = []
    num_reused: list[int] = []
    async with AsyncInferenceClient(address) as client:
        for repetition in range(-1, args.reps):  # the first pair warms up
            first = (repetition + 1) * 2 * args.num_question_tokens  # each beginning is of another place of the text
            beginning = [start_token, *tokens[first : first + args.num_prefix_tokens - 1]]
            questions = (tokens[-args.num_question_tokens :], tokens[: args.num_question_tokens])
            pair = [await _first_token(client, [*beginning, *question]) for question in questions]
            if repetition >= 0:
                (cold, _), (warm, reused) = pair
                uncached.append(cold)
                cached.append(warm)
                num_reused.append(reused)
                _say(f"repetition {repetition + 1} of {args.reps}: {cold:.1f} ms, then {warm:.1f} ms")
    return uncached, cached, num_reused


async def _first_token(client: AsyncInferenceClient, prompt: Sequence[int]) -> tuple[float, int]:
    """Milliseconds to the first token, and the prompt's tokens that came from the cache."""
    started, first, num_cached_tokens = time.perf_counter(), 0.0, 0
    async for event in client.generate(prompt, GenerateOptions(max_tokens=2, temperature=0, ignore_eos=True)):
        if isinstance(event, Delta) and event.token_ids and not first:
            first = time.perf_counter()
        elif isinstance(event, Finished):
            num_cached_tokens = event.usage.num_cached_tokens
    return (first - started) * 1e3, num_cached_tokens


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--num-prefix-tokens", type=int, default=1000)
    parser.add_argument("--num-question-tokens", type=int, default=24)
    parser.add_argument("--reps", type=int, default=8)
    parser.add_argument("--min-ratio", type=float, default=5.0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
