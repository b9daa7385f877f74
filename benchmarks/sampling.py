"""Sampling of one pass on a CPU: what requests may ask for, and that those that differ cost no more than equal ones.

Two comparisons, each of 64 rows of 262,144 logits:

- `different`: every row asks for everything, with values of its own, against rows that all ask for the same.
- `mixed`: each row asks for one kind of thing, every kind being there, against the mean of batches of one kind each,
  which are their fair price.

Exit status 1 if either costs more than `--most` times what it is compared with. The kinds are printed too, against
greedy rows that ask for nothing. Times are those of the process on one thread, so that a busy machine disturbs them
little.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from executor_service.sampling.adjustments import Adjuster, Adjustments, ConstraintKind
from executor_service.sampling.asked import NO_LOGPROBS
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.sampling.entries import LogitBias
from executor_service.sampling.logprobs import logprobs_of
from executor_service.sampling.masks import AllowedTokens
from executor_service.sampling.penalties import Penalties
from executor_service.sampling.sampler import SamplingBatch, sample
from harness.report import Figure, print_json, print_table
from harness.vocabulary import random_tokenizer

NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS = 1024, 256
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string"}, "note": {"type": "string"}},
             "required": ["name", "note"], "additionalProperties": false}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one request asks for; nothing, unless said."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    num_logprobs: int = NO_LOGPROBS
    adjuster: Adjuster | None = None


class Asking:
    """Makes rows. ``variant``: rows with different numbers ask for the same kind with different values."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        tokenizer = random_tokenizer(vocab_size)
        self._compiler = ConstraintCompiler(tokenizer, vocab_size=vocab_size, end_token_ids=[tokenizer.eos_token_id])
        self.kinds: dict[str, Callable[[int], Row]] = {
            "greedy": lambda variant: Row(),
            "temperature": lambda variant: Row(temperature=_spread(variant, 0.5, 1.2)),
            "top-k": lambda variant: Row(temperature=1.0, top_k=20 + variant),
            "top-p": lambda variant: Row(temperature=0.8, top_p=_spread(variant, 0.8, 0.95)),
            "min-p": lambda variant: Row(temperature=1.0, min_p=_spread(variant, 0.01, 0.2)),
            "penalties": lambda variant: Row(adjuster=self._adjuster(variant, penalties=self._penalties(variant))),
            "bias": lambda variant: Row(adjuster=self._adjuster(variant, bias=self._bias(variant))),
            "banned": lambda variant: Row(
                adjuster=self._adjuster(variant, banned_token_ids=self._draw(variant, 100 + variant))
            ),
            "allowed": lambda variant: Row(
                adjuster=self._adjuster(variant, allowed=AllowedTokens(self._draw(variant, 20_000 + 100 * variant)))
            ),
            "constraint": lambda variant: Row(adjuster=self._constrained(variant)),
            "log-probabilities": lambda variant: Row(num_logprobs=1 + variant % 20),
            "everything": lambda variant: Row(
                temperature=_spread(variant, 0.5, 1.2),
                top_k=20 + variant,
                top_p=_spread(variant, 0.8, 0.95),
                min_p=_spread(variant, 0.001, 0.1),
                num_logprobs=1 + variant % 20,
                adjuster=self._constrained(
                    variant,
                    penalties=self._penalties(variant),
                    bias=self._bias(variant),
                    banned_token_ids=self._draw(variant, 100 + variant),
                ),
            ),
        }

    def _adjuster(self, variant: int, **asked: object) -> Adjuster:
        adjuster = Adjuster(
            Adjustments(**asked),  # type: ignore[arg-type]
            prompt_token_ids=self._draw(1_000 + variant, NUM_PROMPT_TOKENS).astype(np.int32),
            end_token_ids=np.empty(0, dtype=np.int64),
            min_output_tokens=0,
        )
        if adjuster.counts is not None:
            for token_id in self._draw(2_000 + variant, NUM_OUTPUT_TOKENS).tolist():
                adjuster.counts.push(token_id)
        return adjuster

    def _constrained(self, variant: int, **asked: object) -> Adjuster:
        """In the midst of a string, where almost every token may come."""
        constraint = self._compiler.compile(ConstraintKind.JSON_SCHEMA, SCHEMA.replace("note", f"note{variant}"))
        adjuster = self._adjuster(variant, constraint=constraint, **asked)
        assert adjuster.matcher is not None
        for token_id in b'{"name":"' + b"x" * (1 + variant % 7):  # its first 256 tokens are the bytes
            adjuster.matcher.push(token_id)
        return adjuster

    def _penalties(self, variant: int) -> Penalties:
        return Penalties(repetition=_spread(variant, 1.01, 1.5), presence=_spread(variant, -1, 1), frequency=0.1)

    def _bias(self, variant: int) -> LogitBias:
        token_ids = self._draw(3_000 + variant, 100 + variant)
        return LogitBias(token_ids=token_ids, values=np.full(len(token_ids), 1.5, dtype=np.float32))

    def _draw(self, seed: int, count: int) -> np.ndarray:
        drawn = np.random.default_rng(seed).choice(self._vocab_size - 256, count, replace=False)
        return np.sort(drawn).astype(np.int64) + 256


def main() -> int:
    args = _arguments()
    torch.set_num_threads(1)
    asking = Asking(args.vocab_size)
    generator = torch.Generator().manual_seed(0)
    # As peaked as logits of a model are: a handful of tokens has most of the probability.
    logits = (torch.randn(args.rows, args.vocab_size, generator=generator) * 6).to(getattr(torch, args.dtype))
    everything = asking.kinds.pop("everything")
    one_kind = {name: [kind(0)] * args.rows for name, kind in asking.kinds.items()}
    makers = list(asking.kinds.values())
    mixed = [makers[row % len(makers)](row) for row in range(args.rows)]
    batches = {
        **one_kind,
        "mixed": mixed,
        "equal": [everything(0)] * args.rows,
        "different": [everything(row) for row in range(args.rows)],
    }
    samples = _timed({name: _batch(rows) for name, rows in batches.items()}, logits, args.reps)
    fair = [statistics.mean(prices) for prices in zip(*(samples[name] for name in one_kind), strict=True)]
    sizes = {"rows": args.rows, "vocab_size": args.vocab_size, "dtype": args.dtype}

    def against(name: str, reference: str, reference_samples: Sequence[float]) -> Figure:
        return Figure(
            name=name,
            unit="ms",
            samples=samples[name],
            sizes=sizes,
            reference=reference,
            reference_samples=reference_samples,
        )

    kinds = [against(name, "greedy", samples["greedy"]) for name in one_kind if name != "greedy"]
    judged = [
        against("different", "64 equal ones" if args.rows == 64 else "equal ones", samples["equal"]),
        against("mixed", "mean of batches of one kind", fair),
    ]
    if args.json:
        print_json(kinds + judged)
    else:
        print_table(f"{args.rows} rows of {args.vocab_size:,} logits, {args.dtype}", kinds + judged)
    dear = [figure.name for figure in judged if min(figure.samples) / min(figure.reference_samples) > args.most]
    for name in dear:
        print(f"{name}: more than {args.most} times what it is compared with", file=sys.stderr)
    return 1 if dear else 0


def _timed(batches: dict[str, SamplingBatch], logits: torch.Tensor, reps: int) -> dict[str, list[float]]:
    """Milliseconds of this process, in turns, so that what else the machine does meets all alike."""
    samples: dict[str, list[float]] = {name: [] for name in batches}
    for rep in range(reps + 1):
        for name, batch in batches.items():
            started = time.process_time_ns()
            tokens = sample(logits, batch)
            logprobs_of(logits, tokens, batch.num_logprobs)
            if rep:  # the first round fills caches
                samples[name].append((time.process_time_ns() - started) / 1e6)
    return samples


def _batch(rows: Sequence[Row]) -> SamplingBatch:
    return SamplingBatch(
        temperature=np.array([row.temperature for row in rows], dtype=np.float32),
        top_k=np.array([row.top_k for row in rows], dtype=np.int32),
        top_p=np.array([row.top_p for row in rows], dtype=np.float32),
        min_p=np.array([row.min_p for row in rows], dtype=np.float32),
        seed=np.arange(len(rows), dtype=np.uint64),
        position=np.full(len(rows), NUM_PROMPT_TOKENS + NUM_OUTPUT_TOKENS),
        num_logprobs=np.array([row.num_logprobs for row in rows], dtype=np.int8),
        adjusters={place: row.adjuster for place, row in enumerate(rows) if row.adjuster is not None},
    )


def _spread(variant: int, low: float, high: float) -> float:
    return low + (high - low) * (variant % 64) / 63


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=262_144)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--most", type=float, default=1.5, help="the ratio of least times that is still well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
