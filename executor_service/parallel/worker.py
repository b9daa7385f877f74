"""Ranks above 0 as processes: `python -m executor_service.parallel.worker FD`, started by `workers.py`.

A worker decides nothing. It runs the passes and copies that rank 0 sends, in their order, over its part of the model
and of the cache. It ends when its socket closes, which the system does however rank 0 ended, whatever it is doing
meanwhile; signals that a terminal or a service manager sends to all processes are rank 0's to obey.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import structlog

from executor_service.parallel.messages import Failed, Join, Joining, Loaded, WorkerSettings
from service_shell.logs import configure_logging

log = structlog.get_logger()


def main() -> None:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    inbox: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), name="inbox", daemon=True).start()
    settings: WorkerSettings = inbox.get()
    configure_logging(settings.log_format, settings.log_level)
    try:
        _work(settings, inbox.get, connection.send)
    except Exception as error:
        log.exception("rank_failed", rank=settings.rank)
        first_line = (str(error).strip().splitlines() or [""])[0]
        connection.send(Failed(first_line or type(error).__name__))
    finally:
        sys.stderr.flush()
        os._exit(1)


def _receive(connection: Connection[Any, Any], inbox: SimpleQueue[Any]) -> None:
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(0)


def _work(settings: WorkerSettings, receive: Callable[[], Any], send: Callable[[object], None]) -> None:
    # torch takes a second to import.
    import torch

    from executor_service.kv.cache import KVCache
    from executor_service.model.loader import load_model
    from executor_service.model.parallel_layers import join
    from executor_service.model.runner import runner_for
    from executor_service.model.shard import Shard
    from executor_service.parallel.follow import follow
    from executor_service.parallel.group import meet
    from executor_service.sizing import spec_of_rank

    def progress(message: str) -> None:
        log.debug("model_progress", rank=settings.rank, message=message)

    torch.set_num_threads(settings.threads)
    loaded = load_model(
        settings.model,
        dtype=settings.dtype,
        device=settings.device,
        progress=progress,
        kernels=settings.kernels,
        quantization=settings.quantization,
        shard=Shard(rank=settings.rank, size=settings.size),
    )
    send(Loaded())
    how: Join = receive()
    spec = spec_of_rank(loaded.config, block_size=settings.block_size, dtype=loaded.dtype, num_ranks=settings.size)
    cache = KVCache(spec, num_blocks=how.num_blocks, num_swap_blocks=how.num_swap_blocks, device=loaded.device)
    send(Joining())
    join(loaded.model, meet(how.rendezvous, rank=settings.rank, size=settings.size, device=loaded.device))
    unknown = follow(receive, runner_for(loaded, cache, settings.size, progress), cache)
    raise AssertionError(f"rank 0 sent {unknown}")


if __name__ == "__main__":
    main()
