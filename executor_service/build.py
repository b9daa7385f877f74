"""From settings to an executor: load the model, size the caches, join engine and planner."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import structlog
import torch

from executor_service.config import Config
from executor_service.convert.generate import ModelFacts
from executor_service.engine.loop import Engine
from executor_service.engine.record import Observer
from executor_service.engine.request import Event
from executor_service.executor import Executor
from executor_service.kv.cache import KVCache, KVCacheSpec, bytes_per_block
from executor_service.model.loader import load_model
from executor_service.model.runner import ModelRunner
from executor_service.recorder import Recorder
from executor_service.recording_file import RecordingSettings
from executor_service.sampling.constraints import ConstraintCompiler
from executor_service.scheduler_client import SchedulerClient
from executor_service.sizing import allocate_cache, fitting_limits
from executor_service.text.tokenizer import Tokenizer
from executor_service.warm_up import run_first_passes

log = structlog.get_logger()

MEASURED_SWAP_BLOCKS = 32


def build_executor(
    config: Config,
    *,
    executor_id: str,
    sink: Callable[[list[Event]], None],
    observer: Observer,
    progress: Callable[[str], None],
) -> Executor:
    """Takes as long as the model's loading. Raises RecordingError, TlsError, ModelSourceError or SizeError."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)  # of the calling thread, for the first passes
    # These two say what is wrong with their files before the model is loaded.
    recorder = _recorder(config)
    planner = SchedulerClient(
        config.scheduler_addresses,
        executor_id=executor_id,
        timeout_s=config.plan_timeout_s,
        policy=config.profile,
        recorder=recorder,
        tls=config.scheduler_tls,
    )
    fit = functools.partial(fitting_limits, config)
    loaded = load_model(config.model, dtype=config.dtype, progress=progress, check=fit, kernels=config.kernels)
    limits = fit(loaded.config, loaded.dtype)
    spec = KVCacheSpec.from_config(loaded.config, block_size=config.block_size, dtype=loaded.dtype)
    cache = allocate_cache(spec, limits, loaded.device)
    log.info(
        "kv_cache",
        num_blocks=limits.num_blocks,
        num_tokens=limits.num_blocks * limits.block_size,
        mebibytes=limits.num_blocks * bytes_per_block(spec) >> 20,
        num_swap_blocks=limits.num_swap_blocks,
        swap_mebibytes=limits.num_swap_blocks * bytes_per_block(spec) >> 20,
    )
    vocab_size = loaded.model.get_input_embeddings().num_embeddings
    progress("preparing the vocabulary for constraints")
    constraints = ConstraintCompiler(loaded.tokenizer, vocab_size=vocab_size, end_token_ids=loaded.eos_token_ids)
    runner = ModelRunner(loaded, cache)
    progress("running the first passes")
    return Executor(
        executor_id=executor_id,
        loaded=loaded,
        facts=ModelFacts(
            limits=limits,
            tokenizer=Tokenizer(loaded.tokenizer, vocab_size=vocab_size),
            eos_token_ids=loaded.eos_token_ids,
            constraints=constraints,
        ),
        engine=Engine(
            limits=limits,
            runner=runner,
            kv=cache,
            planner=planner,
            overlap=config.overlap,
            sink=sink,
            observer=observer,
            prefix_scope=config.prefix_cache,
            lookup=config.lookup,
            swap_block_us=_measure_swap_block_us(cache),
            first_passes=run_first_passes(runner, limits),
        ),
        planner=planner,
    )


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
    started = time.perf_counter()
    cache.copy_out(blocks, blocks)
    cache.copy_in(blocks, blocks)
    return (time.perf_counter() - started) * 1e6 / (2 * len(blocks))
