"""The table of an executor's settings. Flags, variables, keys, help and docs/configuration.md follow it."""

from __future__ import annotations

import re

from executor_service.engine.ngram import NO_LOOKUP
from executor_service.engine.planning import Overlap
from executor_service.kernels.choice import KernelChoice
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.quantization import Quantization
from service_shell.port_settings import LOGS, METRICS, TRACES, port_settings
from service_shell.setting import (
    Setting,
    member,
    one_of,
    path,
    positive_seconds,
    seconds,
    size,
    text,
    text_or_none,
    whole,
)
from service_shell.setting_sources import Program

MAX_NUM_DRAFTS = 256  # more would hardly ever all be right, and each has logits of its own
DEFAULT_SCHEDULER = "127.0.0.1:50051"

# A name, an IPv4 address, or an IPv6 address in brackets; gRPC's way to ask a name server by name is let through.
_HOST = re.compile(r"(dns:///)?([\w.-]+|\[[0-9A-Fa-f:.%\w]+\])")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


def addresses(value: str) -> tuple[str, ...]:
    """One or more, separated by commas."""
    found = tuple(part.strip() for part in text(value).split(",") if part.strip())
    if not found:
        raise ValueError("names no address")
    for address in found:
        host, _, port = address.rpartition(":")
        if _HOST.fullmatch(host) is None or not (port.isdecimal() and 1 <= int(port) <= 65535):
            raise ValueError(f"is not an address, such as {DEFAULT_SCHEDULER} or [::1]:50051")
    return found


def device(value: str) -> str:
    """A device of torch's naming, or auto."""
    if _DEVICE.fullmatch(value) is None:
        raise ValueError("is not a device: auto, cpu, cuda or cuda:N")
    return value


EXECUTOR = Program(
    name="metronome-executor",
    description="Runs a language model by the plans of a Metronome scheduler.",
    prefix="METRONOME_EXECUTOR_",
    settings=(
        *port_settings(50052),
        Setting(
            "executor_id", "serving", text_or_none, "name among a scheduler's executors (default: host name and port)"
        ),
        Setting(
            "quota_file",
            "serving",
            path,
            "TOML file with the limits of tenants; read again when it changes (default: they have none)",
        ),
        Setting(
            "max_num_calls",
            "serving",
            whole(1),
            "calls of Generate open at once, of all connections; one more is refused (default: no bound)",
        ),
        Setting(
            "max_prompt_bytes",
            "serving",
            size,
            "longest prompt as text, all turns together (default: 256 for each token of the model's length)",
        ),
        Setting(
            "stall_s",
            "serving",
            positive_seconds,
            "seconds that an iteration may take before the executor says NOT_SERVING, until it gets on",
            default="60",
        ),
        Setting("grace_s", "serving", seconds, "seconds to finish when stopped", default="10"),
        Setting(
            "model",
            "model",
            text,
            "directory, .gguf file, Hugging Face id, or a built-in name",
            default="gemma3-270m",
        ),
        Setting("device", "model", device, "cpu, cuda, cuda:N, or auto: CUDA where there is a device", default="auto"),
        Setting(
            "dtype",
            "model",
            one_of("auto", "float32", "bfloat16", "float16"),
            "auto, float32, bfloat16 or float16",
            default="auto",
        ),
        Setting(
            "kernels",
            "model",
            member(KernelChoice),
            "compiled for this processor where it has a compiler: auto, compiled or torch",
            default="auto",
        ),
        Setting(
            "quantization",
            "model",
            member(Quantization),
            "weights of linear layers and embeddings in fewer bits: none or int8",
            default="none",
        ),
        Setting("threads", "model", whole(1), "threads of torch, in each process (default: its share of the cores)"),
        Setting("tensor_parallel_size", "model", whole(1), "processes that share each layer of the model", default="1"),
        Setting("num_blocks", "KV cache", whole(1), "KV blocks (default: what --kv-cache-memory holds)"),
        Setting(
            "kv_cache_memory",
            "KV cache",
            size,
            "memory of the KV cache (default: 1GiB; on CUDA most of what is free)",
        ),
        Setting("num_swap_blocks", "KV cache", whole(0), "swap blocks (default: a quarter of the KV blocks)"),
        Setting("block_size", "KV cache", whole(1), "tokens of a block", default="16"),
        Setting(
            "prefix_cache",
            "KV cache",
            member(PrefixScope),
            "reuse the KV of beginnings that prompts share: tenant, within a tenant; shared, among all; or off "
            "for all but the answers to one prompt, which always share it",
            default="tenant",
        ),
        Setting("max_num_batched_tokens", "batch", whole(1), "most tokens of a pass", default="512"),
        Setting("max_num_seqs", "batch", whole(1), "most requests that run at once", default="64"),
        Setting("max_model_len", "batch", whole(1), "most tokens of a request (default: the model's)"),
        Setting("max_num_waiting", "batch", whole(0), "most requests that wait (default: no bound)"),
        Setting(
            "speculative_drafts",
            "speculation",
            whole(0, MAX_NUM_DRAFTS),
            "most tokens guessed for a request and pass, from what the text repeats, and verified in one pass; 0: off",
            default="0",
        ),
        Setting(
            "speculative_ngram_min",
            "speculation",
            whole(1),
            "fewest newest tokens that must have occurred before in prompt or answer",
            default=str(NO_LOOKUP.min_ngram),
        ),
        Setting(
            "speculative_ngram_max",
            "speculation",
            whole(1),
            "most newest tokens that are looked for",
            default=str(NO_LOOKUP.max_ngram),
        ),
        Setting(
            "scheduler",
            "planning",
            addresses,
            "host:port of a scheduler; may be given more than once, or as a list",
            default=DEFAULT_SCHEDULER,
            is_list=True,
        ),
        Setting(
            "scheduler_ca",
            "planning",
            path,
            "PEM file: ask with TLS, and only who shows a certificate that it signed",
        ),
        Setting("scheduler_certificate", "planning", path, "PEM file to show to schedulers that ask for one"),
        Setting("scheduler_key", "planning", path, "PEM file with the key of that certificate"),
        Setting(
            "scheduler_token_file",
            "planning",
            path,
            "file with the token to show to schedulers, over TLS alone; read again when it changes",
        ),
        Setting("profile", "planning", text_or_none, "the scheduler's profile (default: the scheduler's default)"),
        Setting("plan_timeout_ms", "planning", whole(1), "longest wait for a plan", default="1000"),
        Setting(
            "overlap", "planning", member(Overlap), "ask for the next plan while a pass runs: on or off", default="on"
        ),
        Setting("record_dir", "recording", path, "record plans there; a directory for this process alone"),
        Setting("record_max_bytes", "recording", size, "size that ends a file", default="64MiB"),
        Setting("record_max_files", "recording", whole(1), "files to keep, the newest", default="16"),
        *METRICS,
        Setting(
            "metrics_max_tenants",
            "metrics",
            whole(0),
            "tenants with series of their own; those that come later share the label `other`",
            default="100",
        ),
        *TRACES,
        *LOGS,
    ),
)
