"""Settings of an executor: flag, then environment (`METRONOME_EXECUTOR_<FLAG>`), then default. Read once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service.address import is_loopback
from executor_service.engine.ngram import NO_LOOKUP, NgramLookup
from executor_service.engine.planning import Overlap
from executor_service.kernels.choice import KernelChoice
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.quantization import Quantization
from executor_service.scheduler_tls import SchedulerTls
from executor_service.telemetry import LogFormat
from executor_service.tls import TlsFiles

MAX_NUM_DRAFTS = 256  # more would hardly ever all be right, and each has logits of its own
ENVIRONMENT_PREFIX = "METRONOME_EXECUTOR_"
DEFAULT_SCHEDULER = "127.0.0.1:50051"

# A name, an IPv4 address, or an IPv6 address in brackets; gRPC's way to ask a name server by name is let through.
_HOST = re.compile(r"(dns:///)?([\w.-]+|\[[0-9A-Fa-f:.%\w]+\])")

_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    host: str
    port: int  # 0: any free one
    tls: TlsFiles | None  # None: no TLS
    address_file: Path | None  # gets the bound host:port when the server listens
    model: str
    dtype: str
    device: str  # cpu, cuda, cuda:N, or auto
    kernels: KernelChoice
    quantization: Quantization
    scheduler_addresses: tuple[str, ...]
    scheduler_tls: SchedulerTls | None  # None: no TLS
    profile: str | None  # None: the scheduler's default
    executor_id: str | None  # None: host name and port
    num_blocks: int | None  # None: as many as kv_cache_bytes hold
    kv_cache_bytes: int | None  # of all ranks together; None: see sizing.py
    num_swap_blocks: int | None  # None: a quarter of the KV blocks
    block_size: int  # tokens
    prefix_cache: PrefixScope
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int | None  # None: the model's own
    max_num_waiting: int | None  # None: no bound
    lookup: NgramLookup
    plan_timeout_s: float
    overlap: Overlap
    threads: int | None  # of each process; None: torch's choice
    tensor_parallel_size: int  # processes that share the model
    record_dir: Path | None  # None: nothing is recorded
    record_max_bytes: int  # a file
    record_max_files: int
    grace_s: float
    log_format: LogFormat
    log_level: str


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Exits with status 2 and a message where a setting is wrong, as command lines do."""
    parser = _parser()
    for action in parser._actions:
        value = environ.get(ENVIRONMENT_PREFIX + action.dest.upper())
        # argparse converts and checks a default that is a string. To the list of schedulers it would add the flags.
        if value is not None and action.dest not in ("help", "scheduler"):
            action.default = value
    args = parser.parse_args(argv)
    tls = _tls(parser, args)
    if tls is None and not (args.insecure or is_loopback(args.host)):
        parser.error(
            f"argument --host: {args.host} is no loopback address: give --tls-certificate and --tls-key, "
            "or --insecure where the network is to be trusted"
        )
    schedulers = args.scheduler or _schedulers(parser, environ) or [DEFAULT_SCHEDULER]
    return Config(
        host=args.host,
        port=args.port,
        tls=tls,
        address_file=args.address_file,
        model=args.model,
        device=args.device,
        dtype=_one_of(parser, "--dtype", args.dtype, ("auto", "float32", "bfloat16", "float16")),
        kernels=KernelChoice(_one_of(parser, "--kernels", args.kernels, ("auto", "compiled", "torch"))),
        quantization=Quantization(_one_of(parser, "--quantization", args.quantization, ("none", "int8"))),
        scheduler_addresses=tuple(schedulers),
        scheduler_tls=_scheduler_tls(parser, args),
        profile=args.profile or None,
        executor_id=args.executor_id or None,
        num_blocks=args.num_blocks,
        kv_cache_bytes=args.kv_cache_memory,
        num_swap_blocks=args.num_swap_blocks,
        block_size=args.block_size,
        prefix_cache=PrefixScope(_one_of(parser, "--prefix-cache", args.prefix_cache, ("tenant", "shared", "off"))),
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len,
        max_num_waiting=args.max_num_waiting,
        lookup=_lookup(parser, args),
        plan_timeout_s=args.plan_timeout_ms / 1000,
        overlap=Overlap(_one_of(parser, "--overlap", args.overlap, ("on", "off"))),
        threads=args.threads,
        tensor_parallel_size=args.tensor_parallel_size,
        record_dir=args.record_dir,
        record_max_bytes=args.record_max_bytes,
        record_max_files=args.record_max_files,
        grace_s=args.grace_s,
        log_format=LogFormat(_one_of(parser, "--log-format", args.log_format, ("console", "json"))),
        log_level=_one_of(parser, "--log-level", args.log_level, ("debug", "info", "warning", "error")),
    )


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds defaults, but those that are None: there the help says itself what happens."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metronome-executor",
        description="Runs a language model by the plans of a Metronome scheduler.",
        epilog=f"Every setting can be given as {ENVIRONMENT_PREFIX}<NAME> in the environment; a flag goes first.",
        formatter_class=_HelpFormatter,
    )
    serving = parser.add_argument_group("serving")
    serving.add_argument("--host", default="127.0.0.1", help="address to listen on")
    serving.add_argument("--port", type=_port, default=50052, help="port to listen on; 0: any free one")
    serving.add_argument("--tls-certificate", type=Path, help="PEM file: serve with TLS; read again when it changes")
    serving.add_argument("--tls-key", type=Path, help="PEM file with the key of the certificate")
    serving.add_argument("--tls-client-ca", type=Path, help="PEM file: clients must show a certificate that it signed")
    serving.add_argument(
        "--insecure",
        type=_switch,
        nargs="?",
        const=True,
        default=False,
        help="without TLS also on an address that is no loopback",
    )
    serving.add_argument("--address-file", type=Path, help="file that gets the bound host:port")
    serving.add_argument("--executor-id", help="name among a scheduler's executors (default: host name and port)")
    serving.add_argument("--grace-s", type=_not_negative_float, default=10.0, help="seconds to finish when stopped")
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", type=_model, default="gemma3-270m", help="directory, .gguf file, Hugging Face id, or a built-in name"
    )
    model.add_argument(
        "--device", type=_device, default="auto", help="cpu, cuda, cuda:N, or auto: CUDA where there is a device"
    )
    model.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    model.add_argument(
        "--kernels", default="auto", help="compiled for this processor where it has a compiler: auto, compiled or torch"
    )
    model.add_argument(
        "--quantization", default="none", help="weights of linear layers and embeddings in fewer bits: none or int8"
    )
    model.add_argument(
        "--threads", type=_positive, help="threads of torch, in each process (default: its choice, or a fair share)"
    )
    model.add_argument(
        "--tensor-parallel-size", type=_positive, default=1, help="processes that share each layer of the model"
    )
    memory = parser.add_argument_group("KV cache")
    memory.add_argument("--num-blocks", type=_positive, help="KV blocks (default: what --kv-cache-memory holds)")
    memory.add_argument(
        "--kv-cache-memory", type=_size, help="memory of the KV cache (default: 1GiB; on CUDA most of what is free)"
    )
    memory.add_argument(
        "--num-swap-blocks", type=_not_negative, help="swap blocks (default: a quarter of the KV blocks)"
    )
    memory.add_argument("--block-size", type=_positive, default=16, help="tokens of a block")
    memory.add_argument(
        "--prefix-cache",
        default="tenant",
        help="reuse the KV of beginnings that prompts share: tenant, within a tenant; shared, among all; or off "
        "for all but the answers to one prompt, which always share it",
    )
    batch = parser.add_argument_group("batch")
    batch.add_argument("--max-num-batched-tokens", type=_positive, default=512, help="most tokens of a pass")
    batch.add_argument("--max-num-seqs", type=_positive, default=64, help="most requests that run at once")
    batch.add_argument("--max-model-len", type=_positive, help="most tokens of a request (default: the model's)")
    batch.add_argument("--max-num-waiting", type=_not_negative, help="most requests that wait (default: no bound)")
    speculation = parser.add_argument_group(
        "speculation", "guesses tokens ahead from what the text repeats and verifies them in one pass; same answers"
    )
    speculation.add_argument(
        "--speculative-drafts", type=_drafts, default=0, help="most tokens guessed for a request and pass; 0: off"
    )
    speculation.add_argument(
        "--speculative-ngram-min",
        type=_positive,
        default=NO_LOOKUP.min_ngram,
        help="fewest newest tokens that must have occurred before in prompt or answer",
    )
    speculation.add_argument(
        "--speculative-ngram-max",
        type=_positive,
        default=NO_LOOKUP.max_ngram,
        help="most newest tokens that are looked for",
    )
    planning = parser.add_argument_group("planning")
    planning.add_argument(
        "--scheduler",
        action="append",
        type=_address,
        metavar="HOST:PORT",
        help=f"may be given more than once, or with commas in the environment (default: {DEFAULT_SCHEDULER})",
    )
    planning.add_argument(
        "--scheduler-ca", type=Path, help="PEM file: ask with TLS, and only who shows a certificate that it signed"
    )
    planning.add_argument("--scheduler-certificate", type=Path, help="PEM file to show to schedulers that ask for one")
    planning.add_argument("--scheduler-key", type=Path, help="PEM file with the key of that certificate")
    planning.add_argument("--profile", help="the scheduler's profile (default: the scheduler's default)")
    planning.add_argument("--plan-timeout-ms", type=_positive, default=1000, help="longest wait for a plan")
    planning.add_argument("--overlap", default="on", help="ask for the next plan while a pass runs: on or off")
    recording = parser.add_argument_group("recording")
    recording.add_argument("--record-dir", type=Path, help="record plans there; a directory for this process alone")
    recording.add_argument("--record-max-bytes", type=_size, default="64MiB", help="size that ends a file")
    recording.add_argument("--record-max-files", type=_positive, default=16, help="files to keep, the newest")
    logs = parser.add_argument_group("logs")
    logs.add_argument("--log-format", default="console", help="console or json")
    logs.add_argument("--log-level", default="info", help="debug, info, warning or error")
    return parser


def _tls(parser: argparse.ArgumentParser, args: argparse.Namespace) -> TlsFiles | None:
    if args.tls_certificate is None and args.tls_key is None:
        if args.tls_client_ca is not None:
            parser.error("argument --tls-client-ca: needs --tls-certificate and --tls-key")
        return None
    if args.tls_certificate is None or args.tls_key is None:
        parser.error("arguments --tls-certificate and --tls-key need each other")
    return TlsFiles(certificate=args.tls_certificate, key=args.tls_key, client_ca=args.tls_client_ca)


def _scheduler_tls(parser: argparse.ArgumentParser, args: argparse.Namespace) -> SchedulerTls | None:
    if (args.scheduler_certificate is None) != (args.scheduler_key is None):
        parser.error("arguments --scheduler-certificate and --scheduler-key need each other")
    if args.scheduler_ca is None:
        if args.scheduler_certificate is not None:
            parser.error("argument --scheduler-certificate: needs --scheduler-ca")
        return None
    return SchedulerTls(ca=args.scheduler_ca, certificate=args.scheduler_certificate, key=args.scheduler_key)


def _schedulers(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> list[str]:
    """Those of the environment, separated by commas."""
    items = environ.get(ENVIRONMENT_PREFIX + "SCHEDULER", "").split(",")
    try:
        return [_address(item.strip()) for item in items if item.strip()]
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --scheduler: {error}")


def _lookup(parser: argparse.ArgumentParser, args: argparse.Namespace) -> NgramLookup:
    least, most = args.speculative_ngram_min, args.speculative_ngram_max
    if least > most:
        parser.error(f"argument --speculative-ngram-min: {least} is more than --speculative-ngram-max, {most}")
    return NgramLookup(max_num_drafts=args.speculative_drafts, min_ngram=least, max_ngram=most)


def _one_of(parser: argparse.ArgumentParser, flag: str, value: str, choices: tuple[str, ...]) -> str:
    # argparse checks `choices` of flags, but not of defaults that come from the environment.
    if value not in choices:
        parser.error(f"argument {flag}: {value!r} is none of {', '.join(choices)}")
    return value


def _integer(text: str, low: int, high: int | None, what: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if value < low or (high is not None and value > high):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def _switch(text: str) -> bool:
    if text.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text.lower() in ("1", "true", "yes", "on")


def _positive(text: str) -> int:
    return _integer(text, 1, None, "a whole number above 0")


def _not_negative(text: str) -> int:
    return _integer(text, 0, None, "a whole number, 0 or above")


def _drafts(text: str) -> int:
    return _integer(text, 0, MAX_NUM_DRAFTS, f"a number of drafts, 0 to {MAX_NUM_DRAFTS}")


def _port(text: str) -> int:
    return _integer(text, 0, 65535, "a port, 0 to 65535")


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if _HOST.fullmatch(host) is None or not (port.isdecimal() and 1 <= int(port) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address, such as {DEFAULT_SCHEDULER} or [::1]:50051")
    return text


def _model(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} names no model")
    return text


def _device(text: str) -> str:
    if _DEVICE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a device: auto, cpu, cuda or cuda:N")
    return text


def _not_negative_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _size(text: str) -> int:
    """Bytes of `512MiB`, `2GiB` or a plain number."""
    units = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "": 1}
    number = text.rstrip("KMGTiB")
    unit = text[len(number) :]
    try:
        value = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 512MiB or 2GiB")
    return value
