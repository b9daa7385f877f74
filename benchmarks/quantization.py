"""What weights in 8 bits cost and save: logits against those of float32, memory, and the time of a pass.

Each side runs in a process of its own, so that its memory is its own; both, and the model in float32, read the same
text (the prompts of `metronome run`) and tell at each token how likely every next one is. Told of them:

- KL divergence from float32, mean and 99th percentile over tokens, and how often the most likely token is the same;
- perplexity of the text;
- what the process's memory grew by until the model was loaded, without a KV cache, and the most until then;
- the time of a pass of 1, 16 and 64 decodes at 200 tokens of context, and of a chunk of 256 tokens; medians.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

NUM_DECODES = (1, 16, 64)
CONTEXT_LEN = 200
CHUNK_LEN = 256
BLOCK_SIZE = 16
NUM_TEXT_TOKENS = 128  # of a text that logits are told for
NUM_WARM_UP_PASSES = 2
FLOAT32 = ("float32", "none")


def main() -> int:
    args = _arguments()
    if args.side:
        print(json.dumps(_side(args)))
        return 0
    sides = [FLOAT32, (args.dtype, "none"), (args.dtype, "int8")]
    with tempfile.TemporaryDirectory() as directory:
        reference = Path(directory) / "float32.npy"
        results = [_run(args, side, reference) for side in sides]
    if args.json:
        for result in results:
            print(json.dumps(result), flush=True)
    else:
        _print_table(args, results)
    return 0


def _run(args: argparse.Namespace, side: tuple[str, str], reference: Path) -> dict[str, Any]:
    """A side in a process of its own."""
    flags = ["--model", args.model, "--num-texts", str(args.num_texts), "--reps", str(args.reps)]
    command = [sys.executable, __file__, "--side", *side, "--reference", str(reference), *flags]
    print(f"{side[0]}, weights {side[1]}", file=sys.stderr, flush=True)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def _side(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from executor_service.model.loader import load_model
    from executor_service.model.quantization import Quantization
    from harness.workload import corpus_tokens

    dtype, quantization = args.side
    before = _resident_mib()
    started = time.perf_counter()
    loaded = load_model(args.model, dtype=dtype, quantization=Quantization(quantization), progress=lambda line: None)
    load_s = time.perf_counter() - started
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # what was freed while it was loaded
    result: dict[str, Any] = {
        "model": args.model,
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "quantization": quantization,
        "load_s": load_s,
    }
    if (dtype, quantization) != FLOAT32:  # whose weights lie in the file until they are read
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result |= {"resident_mib": _resident_mib() - before, "peak_mib": peak_mib - before}
        result |= _pass_times_ms(loaded, args.reps)
    start_token, corpus = corpus_tokens(loaded.tokenizer.encode)
    starts = range(0, NUM_TEXT_TOKENS * args.num_texts, NUM_TEXT_TOKENS)
    texts = [[start_token, *corpus[start : start + NUM_TEXT_TOKENS]] for start in starts]
    loaded.model.set_attn_implementation("sdpa")
    with torch.inference_mode():
        return result | _quality(loaded, texts, args.reference, writes=(dtype, quantization) == FLOAT32)


def _quality(loaded: Any, texts: Sequence[Sequence[int]], reference: Path, *, writes: bool) -> dict[str, float]:
    """Against what float32 has written; or, in float32, write it: log-probabilities [texts, tokens, V] as float16
    would lose the unlikely ones, so float32 it is.
    """
    import torch

    divergences, same, losses = [], [], []
    kept = None
    for index, text in enumerate(texts):
        ids = torch.tensor([text])
        told = torch.log_softmax(loaded.model(input_ids=ids).logits[0, :-1].float(), dim=-1)  # [tokens, V]
        losses.append(-told.gather(1, ids[0, 1:, None]).squeeze(1))
        if kept is None:
            shape = (len(texts), *told.shape)
            kept = np.lib.format.open_memmap(reference, mode="w+" if writes else "r", dtype=np.float32, shape=shape)
        if writes:
            kept[index] = told.numpy()
            continue
        truth = torch.from_numpy(np.array(kept[index]))
        divergences.append((truth.exp() * (truth - told)).sum(dim=-1))
        same.append((truth.argmax(dim=-1) == told.argmax(dim=-1)).float())
    quality = {"perplexity": float(torch.cat(losses).mean().exp())}
    if not writes:
        divergence = torch.cat(divergences)
        quality |= {
            "kl_mean": float(divergence.mean()),
            "kl_p99": float(divergence.quantile(0.99)),
            "top1_agreement": float(torch.cat(same).mean()),
        }
    return quality


def _pass_times_ms(loaded: Any, reps: int) -> dict[str, float]:
    from executor_service.kv.cache import KVCache, KVCacheSpec
    from executor_service.model.runner import ModelRunner
    from harness.passes import greedy_pass

    spec = KVCacheSpec.from_config(loaded.config, block_size=BLOCK_SIZE, dtype=loaded.dtype)
    blocks_each = -(-max(CONTEXT_LEN, CHUNK_LEN) // BLOCK_SIZE)
    runner = ModelRunner(loaded, KVCache(spec, num_blocks=max(NUM_DECODES) * blocks_each, num_swap_blocks=0))
    passes = {f"{count} decodes": (count, 1, CONTEXT_LEN) for count in NUM_DECODES}
    passes[f"a chunk of {CHUNK_LEN}"] = (1, CHUNK_LEN, CHUNK_LEN)
    times: dict[str, float] = {}
    for name, (num_requests, query_len, context_len) in passes.items():
        batch, sampling = greedy_pass(num_requests, query_len, context_len, blocks_each)
        measured = []
        for repetition in range(NUM_WARM_UP_PASSES + reps):
            started = time.perf_counter()
            runner.execute(batch, sampling)
            if repetition >= NUM_WARM_UP_PASSES:
                measured.append((time.perf_counter() - started) * 1e3)
        times[f"{name}, ms"] = float(np.median(measured))
    return times


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def _print_table(args: argparse.Namespace, results: Sequence[dict[str, Any]]) -> None:
    table = Table(title=f"{args.model}, {args.num_texts} texts of {NUM_TEXT_TOKENS} tokens", title_justify="left")
    table.add_column("")
    for result in results:
        table.add_column(f"{result['dtype']}, {result['quantization']}", justify="right")
    names = list(dict.fromkeys(name for result in results for name in result))
    for name in names[3:]:  # behind those of the heading
        table.add_row(name, *(f"{result[name]:.4g}" if name in result else "" for result in results))
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gemma3-270m")
    parser.add_argument("--dtype", default="bfloat16", help="number type of the sides that are compared")
    parser.add_argument("--num-texts", type=int, default=4)
    parser.add_argument("--reps", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--side", nargs=2, metavar=("DTYPE", "WEIGHTS"), help=argparse.SUPPRESS)
    parser.add_argument("--reference", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
