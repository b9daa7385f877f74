"""From settings to an executor: load the model, size the caches, join engine and planner."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import structlog
import torch

from executor_service.config import Config
from executor_service.convert.generate import ModelFacts
from executor_service.cores import usable_threads
from executor_service.engine.device import KVCopier, Runner
from executor_service.engine.limits import Limits
from executor_service.engine.loop import Engine
from executor_service.engine.record import Observer
from executor_service.engine.request import Event
from executor_service.executor import Executor
from executor_service.heap import give_back_freed_memory
from executor_service.kv.cache import KVCache, bytes_per_block
from executor_service.model.devices import resolve_device
from executor_service.model.loaded import LoadedModel, LoadedTokenizer
from executor_service.model.loader import load_model
from executor_service.model.parallel_layers import join
from executor_service.model.runner import runner_for
from executor_service.model.shard import Shard
from executor_service.parallel.group import meet
from executor_service.parallel.lead import LeadCache, LeadRunner
from executor_service.parallel.messages import Join, Joining, Loaded, WorkerSettings
from executor_service.parallel.workers import Workers
from executor_service.recorder import Recorder
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.scheduler_client import SchedulerClient
from executor_service.sizing import allocate_cache, fitting_limits, spec_of_rank
from executor_service.text.tokenizer import Tokenizer
from executor_service.traces import Traces
from executor_service.warm_up import run_first_passes
from service_shell.recording_file import RecordingSettings

log = structlog.get_logger()

MEASURED_SWAP_BLOCKS = 32
# More than a token of any vocabulary stands for, so that text which is longer cannot be a prompt.
BYTES_PER_TOKEN = 256


def build_executor(
    config: Config,
    *,
    executor_id: str,
    sink: Callable[[list[Event]], None],
    observer: Observer,
    traces: Traces,
    progress: Callable[[str], None],
) -> Executor:
    """Takes as long as the model's loading.

    Raises RecordingError, TlsError, FileError, ModelSourceError, DeviceError, SizeError, WorkerStartError or
    DeviceLostError.
    """
    workers = Workers()
    try:
        return _build(
            config, workers, executor_id=executor_id, sink=sink, observer=observer, traces=traces, progress=progress
        )
    except BaseException:
        workers.close()
        raise


def _build(
    config: Config,
    workers: Workers,
    *,
    executor_id: str,
    sink: Callable[[list[Event]], None],
    observer: Observer,
    traces: Traces,
    progress: Callable[[str], None],
) -> Executor:
    torch.set_num_threads(threads_of_rank(config))  # of the calling thread, for the first passes
    # These say what is wrong with their files before the model is loaded.
    recorder = _recorder(config)
    planner = SchedulerClient(
        config.scheduler_addresses,
        executor_id=executor_id,
        timeout_s=config.plan_timeout_s,
        policy=config.profile,
        recorder=recorder,
        tls=config.scheduler_tls,
        token_file=config.scheduler_token_file,
        traces=traces,
    )
    num_ranks = config.tensor_parallel_size
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraints") as beside:
        # The one takes a core's time with the interpreter's lock, the other mostly without it.
        preparing: list[Future[ConstraintCompiler]] = []
        loaded = _load(
            config, workers, progress, lambda known: preparing.append(beside.submit(_prepare_constraints, known))
        )
        constraints = preparing[0].result()
    give_back_freed_memory()
    limits = fitting_limits(config, loaded.config, loaded.dtype, loaded.device)
    spec = spec_of_rank(loaded.config, block_size=config.block_size, dtype=loaded.dtype, num_ranks=num_ranks)
    cache = allocate_cache(spec, limits, loaded.device)
    if num_ranks > 1:
        _meet(loaded, limits, workers, num_ranks)
    log.info(
        "kv_cache",
        num_blocks=limits.num_blocks,
        num_tokens=limits.num_blocks * limits.block_size,
        mebibytes=num_ranks * limits.num_blocks * bytes_per_block(spec) >> 20,
        num_swap_blocks=limits.num_swap_blocks,
        swap_mebibytes=num_ranks * limits.num_swap_blocks * bytes_per_block(spec) >> 20,
    )
    vocab_size = loaded.model.get_input_embeddings().num_embeddings
    model_runner = runner_for(loaded, cache, num_ranks, progress)
    runner: Runner = model_runner
    kv: KVCopier = cache
    if num_ranks > 1:
        runner, kv = LeadRunner(model_runner, workers.send), LeadCache(cache, workers.send)
    progress("running the first passes")
    return Executor(
        executor_id=executor_id,
        loaded=loaded,
        facts=ModelFacts(
            limits=limits,
            tokenizer=Tokenizer(loaded.tokenizer, vocab_size=vocab_size),
            eos_token_ids=loaded.eos_token_ids,
            max_prompt_bytes=config.max_prompt_bytes or BYTES_PER_TOKEN * limits.max_model_len,
            constraints=constraints,
        ),
        engine=Engine(
            limits=limits,
            runner=runner,
            kv=kv,
            planner=planner,
            overlap=config.overlap,
            sink=sink,
            observer=observer,
            prefix_scope=config.prefix_cache,
            lookup=config.lookup,
            swap_block_us=_measure_swap_block_us(cache),
            times_copies=loaded.device.type == "cpu",
            first_passes=run_first_passes(runner, limits),
        ),
        planner=planner,
        workers=workers,
    )


def threads_of_rank(config: Config) -> int:
    """Threads of torch in each process: what was asked for, else a fair share."""
    return config.threads or max(1, usable_threads() // config.tensor_parallel_size)


def _load(
    config: Config,
    workers: Workers,
    progress: Callable[[str], None],
    tokenizer_loaded: Callable[[LoadedTokenizer], object],
) -> LoadedModel:
    """The model, or rank 0's part of it; the other ranks load theirs at the same time."""
    num_ranks = config.tensor_parallel_size
    device = resolve_device(config.device, size=num_ranks)

    def check(model_config: Any, dtype: torch.dtype) -> None:
        fitting_limits(config, model_config, dtype, device)
        workers.start([_worker_settings(config, rank) for rank in range(1, num_ranks)])

    return load_model(
        config.model,
        dtype=config.dtype,
        device=device,
        progress=progress,
        check=check,
        kernels=config.kernels,
        quantization=config.quantization,
        shard=Shard(rank=0, size=num_ranks),
        tokenizer_loaded=tokenizer_loaded,
    )


def _worker_settings(config: Config, rank: int) -> WorkerSettings:
    return WorkerSettings(
        rank=rank,
        size=config.tensor_parallel_size,
        model=config.model,
        dtype=config.dtype,
        kernels=config.kernels,
        quantization=config.quantization,
        device=str(resolve_device(config.device, rank=rank, size=config.tensor_parallel_size)),
        block_size=config.block_size,
        threads=threads_of_rank(config),
        log_format=config.log_format,
        log_level=config.log_level,
    )


def _meet(loaded: LoadedModel, limits: Limits, workers: Workers, num_ranks: int) -> None:
    """Have all ranks allocate their caches and come together. Raises WorkerStartError."""
    workers.wait_for(Loaded)
    with tempfile.TemporaryDirectory(prefix="metronome-ranks-") as scratch:
        rendezvous = Path(scratch) / "rendezvous"
        workers.send(Join(rendezvous=rendezvous, num_blocks=limits.num_blocks, num_swap_blocks=limits.num_swap_blocks))
        workers.wait_for(Joining)
        join(loaded.model, meet(rendezvous, rank=0, size=num_ranks, device=loaded.device))


def _prepare_constraints(known: LoadedTokenizer) -> ConstraintCompiler:
    return ConstraintCompiler(known.tokenizer, vocab_size=known.vocab_size, end_token_ids=known.eos_token_ids)


def _recorder(config: Config) -> Recorder | None:
    if config.record_dir is None:
        return None
    settings = RecordingSettings(
        directory=config.record_dir, max_file_bytes=config.record_max_bytes, max_files=config.record_max_files
    )
    recorder = Recorder(settings)
    recorder.start()
    return recorder


def _measure_swap_block_us(cache: KVCache) -> float:
    """Microseconds to copy one block, one way; known before the first eviction, so that AUTO can choose at that one."""
    blocks = np.arange(min(MEASURED_SWAP_BLOCKS, cache.num_blocks, cache.num_swap_blocks))
    if not len(blocks):
        return 0.0
    cache.copy_out(blocks, blocks)  # the first touch of fresh memory costs more than a copy
    cache.wait_for_copies()
    started = time.perf_counter()
    cache.copy_out(blocks, blocks)
    cache.copy_in(blocks, blocks)
    cache.wait_for_copies()
    return (time.perf_counter() - started) * 1e6 / (2 * len(blocks))
