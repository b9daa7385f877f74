"""Output tokens per second: the whole stack over gRPC against transformers `generate` with static batches.

Same model, number type, prompts, output lengths and batch size, all requests there at the start, in turns within one
run. A static batch ends with its longest answer. It is formed once in the order of arrival, which is what a static
batcher can do, and once sorted by output length, which nobody knows beforehand and is the best that one could reach.

Exit status 1 if the ratio against the order of arrival is below --min-ratio.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from executor_service.model.dtypes import resolve_dtype
from executor_service.model.gguf import default_cache_dir
from executor_service.model.sources import resolve_source
from harness.report import Figure, print_json, print_table
from harness.stack import local_stack, run_jobs
from harness.workload import Job, jobs_from_file, mixed_jobs
from metronome_cli.stack.services import ExecutorSettings


def main() -> int:
    args = _arguments()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = resolve_source(args.model, cache_dir=default_cache_dir(), progress=_say).directory
    dtype = resolve_dtype(args.dtype, torch.device("cpu"))
    tokenizer = AutoTokenizer.from_pretrained(directory)
    jobs = jobs_from_file(args.workload) if args.workload else mixed_jobs(args.num_requests, tokenizer.encode)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="sdpa").eval()
    orders = {
        "transformers generate, static batches": jobs,
        "the same, sorted by output length": sorted(jobs, key=lambda job: job.num_output_tokens),
    }
    num_output_tokens = sum(job.num_output_tokens for job in jobs)
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in orders}
    settings = ExecutorSettings(
        model=args.model,
        dtype=str(dtype).removeprefix("torch."),
        max_num_seqs=args.batch_size,
        prefix_cache="off",  # repetitions send the same prompts again
    )
    with local_stack(settings) as address:
        warm_up = [Job(prompt_token_ids=job.prompt_token_ids, num_output_tokens=4) for job in jobs[:4]]
        run_jobs(address, warm_up)
        _static_batches(model, warm_up, args.batch_size)
        for repetition in range(args.reps):
            answers, seconds = run_jobs(address, jobs)
            assert [len(answer) for answer in answers] == [job.num_output_tokens for job in jobs]
            ours.append(num_output_tokens / seconds)
            for name, order in orders.items():
                theirs[name].append(num_output_tokens / _static_batches(model, order, args.batch_size))
            _say(f"repetition {repetition + 1} of {args.reps}: {ours[-1]:.1f} tok/s")
    sizes = {
        "model": args.model,
        "dtype": str(dtype).removeprefix("torch."),
        "batch_size": args.batch_size,
        "num_requests": len(jobs),
        "num_prompt_tokens": sum(len(job.prompt_token_ids) for job in jobs),
        "num_output_tokens": num_output_tokens,
        "threads": torch.get_num_threads(),
        "reps": args.reps,
    }
    figures = [
        Figure(
            name="output tokens per second",
            unit="tok/s",
            samples=ours,
            sizes=sizes,
            reference=name,
            reference_samples=samples,
        )
        for name, samples in theirs.items()
    ]
    if args.json:
        print_json(figures)
    else:
        print_table(", ".join(f"{name} {value}" for name, value in sizes.items()), figures)
    return 0 if figures[0].ratio >= args.min_ratio else 1


def _static_batches(model: Any, jobs: Sequence[Job], batch_size: int) -> float:
    """Seconds for all jobs, batch after batch, left-padded, each batch to its longest answer."""
    import torch

    started = time.perf_counter()
    for first in range(0, len(jobs), batch_size):
        batch = jobs[first : first + batch_size]
        longest_prompt = max(len(job.prompt_token_ids) for job in batch)
        num_new_tokens = max(job.num_output_tokens for job in batch)
        input_ids = torch.zeros(len(batch), longest_prompt, dtype=torch.long)  # [B, S]
        attention_mask = torch.zeros_like(input_ids)
        for row, job in enumerate(batch):
            input_ids[row, longest_prompt - len(job.prompt_token_ids) :] = torch.tensor(job.prompt_token_ids)
            attention_mask[row, longest_prompt - len(job.prompt_token_ids) :] = 1
        model.generate(
            input_ids,
            attention_mask=attention_mask,
            do_sample=False,
            max_new_tokens=num_new_tokens,
            min_new_tokens=num_new_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--batch-size", type=int, default=16, help="requests at once, on both sides")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--workload", type=Path, help="JSON file of requests, instead of the built-in ones")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--min-ratio", type=float, default=2.0)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser.parse_args()


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
