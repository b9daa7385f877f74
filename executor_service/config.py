"""Configuration of an executor: its settings (settings.py), read once at the start and checked against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor_service.engine.ngram import NgramLookup
from executor_service.engine.planning import Overlap
from executor_service.kernels.choice import KernelChoice
from executor_service.kv.prefix_cache import PrefixScope
from executor_service.model.quantization import Quantization
from executor_service.scheduler_tls import SchedulerTls
from executor_service.settings import EXECUTOR
from service_shell.logs import LogFormat
from service_shell.metrics_endpoint import MetricsAddress
from service_shell.port_settings import tls_of
from service_shell.setting_sources import SettingError, Values, configure
from service_shell.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    host: str
    port: int  # 0: any free one
    tls: TlsFiles | None  # None: no TLS
    access_file: Path | None  # None: everybody may call, for every tenant
    quota_file: Path | None  # None: no tenant has limits of its own
    max_num_calls: int | None  # of Generate, at once; None: no bound
    max_prompt_bytes: int | None  # None: see convert/generate.py
    max_message_bytes: int
    max_metadata_bytes: int  # of a call
    max_streams_per_connection: int
    address_file: Path | None  # gets the bound host:port when the server listens
    model: str
    dtype: str
    device: str  # cpu, cuda, cuda:N, or auto
    kernels: KernelChoice
    quantization: Quantization
    scheduler_addresses: tuple[str, ...]
    scheduler_tls: SchedulerTls | None  # None: no TLS
    scheduler_token_file: Path | None  # None: no token is sent
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
    threads: int | None  # of each process; None: one for each core that it may use
    tensor_parallel_size: int  # processes that share the model
    record_dir: Path | None  # None: nothing is recorded
    record_max_bytes: int  # a file
    record_max_files: int
    grace_s: float
    stall_s: float
    metrics_address: MetricsAddress | None  # None: no metrics
    metrics_max_tenants: int  # that have series of their own
    tracing: str  # off or otlp
    log_format: LogFormat
    log_level: str


def parse_config(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Exits with status 2 and a message where a setting is wrong, with 0 where settings or help were to be printed."""
    return configure(EXECUTOR, argv, environ, _config)


def _config(values: Values) -> Config:
    return Config(
        host=values["host"],
        port=values["port"],
        tls=tls_of(values),
        access_file=values["access_file"],
        quota_file=values["quota_file"],
        max_num_calls=values["max_num_calls"],
        max_prompt_bytes=values["max_prompt_bytes"],
        max_message_bytes=values["max_message_bytes"],
        max_metadata_bytes=values["max_metadata_bytes"],
        max_streams_per_connection=values["max_streams_per_connection"],
        address_file=values["address_file"],
        model=values["model"],
        device=values["device"],
        dtype=values["dtype"],
        kernels=values["kernels"],
        quantization=values["quantization"],
        scheduler_addresses=values["scheduler"],
        scheduler_tls=_scheduler_tls(values),
        scheduler_token_file=_scheduler_token_file(values),
        profile=values["profile"],
        executor_id=values["executor_id"],
        num_blocks=values["num_blocks"],
        kv_cache_bytes=values["kv_cache_memory"],
        num_swap_blocks=values["num_swap_blocks"],
        block_size=values["block_size"],
        prefix_cache=values["prefix_cache"],
        max_num_batched_tokens=values["max_num_batched_tokens"],
        max_num_seqs=values["max_num_seqs"],
        max_model_len=values["max_model_len"],
        max_num_waiting=values["max_num_waiting"],
        lookup=_lookup(values),
        plan_timeout_s=values["plan_timeout_ms"] / 1000,
        overlap=values["overlap"],
        threads=values["threads"],
        tensor_parallel_size=values["tensor_parallel_size"],
        record_dir=values["record_dir"],
        record_max_bytes=values["record_max_bytes"],
        record_max_files=values["record_max_files"],
        grace_s=values["grace_s"],
        stall_s=values["stall_s"],
        metrics_address=values["metrics_address"],
        metrics_max_tenants=values["metrics_max_tenants"],
        tracing=values["tracing"],
        log_format=values["log_format"],
        log_level=values["log_level"],
    )


def _scheduler_tls(values: Values) -> SchedulerTls | None:
    ca, certificate, key = values["scheduler_ca"], values["scheduler_certificate"], values["scheduler_key"]
    if (certificate is None) != (key is None):
        raise SettingError("arguments --scheduler-certificate and --scheduler-key need each other")
    if ca is None:
        if certificate is not None:
            raise SettingError("argument --scheduler-certificate: needs --scheduler-ca")
        return None
    return SchedulerTls(ca=ca, certificate=certificate, key=key)


def _scheduler_token_file(values: Values) -> Path | None:
    file: Path | None = values["scheduler_token_file"]
    if file is not None and values["scheduler_ca"] is None:
        raise SettingError("argument --scheduler-token-file: needs --scheduler-ca; a token is sent over TLS alone")
    return file


def _lookup(values: Values) -> NgramLookup:
    least, most = values["speculative_ngram_min"], values["speculative_ngram_max"]
    if least > most:
        raise SettingError(f"argument --speculative-ngram-min: {least} is more than --speculative-ngram-max, {most}")
    return NgramLookup(max_num_drafts=values["speculative_drafts"], min_ngram=least, max_ngram=most)
