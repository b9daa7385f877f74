"""`python -m executor_service` and `metronome-executor`."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executor_service.config import Config

# The scheduler installs without them, so they may be missing.
EXTRA = "metronome-llm[executor]"
NEEDED_OF_EXTRA = ("torch", "transformers")


def main() -> None:
    # gRPC's core writes lines that are no events, of what the log tells by itself. It reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from executor_service.config import parse_config
    from service_shell.logs import configure_logging

    config = parse_config(sys.argv[1:], os.environ)
    configure_logging(config.log_format, config.log_level)
    for name in NEEDED_OF_EXTRA:
        if find_spec(name) is None:
            sys.exit(f"error: {name} is not installed: run `pip install '{EXTRA}'`")
    status = _serve(config)
    sys.stderr.flush()
    # The engine's thread and gRPC's may be busy still; nothing that they hold outlives the process.
    os._exit(status)


def _serve(config: Config) -> int:
    """The exit status."""
    # Threads of OpenMP that wait for one another spin, for milliseconds unless told otherwise, on cores that gRPC's
    # threads and other programs need. So many rounds, 60 to 250 µs, are enough between two operations of a pass, and
    # five times as many cost half of the throughput where another program has one of two cores
    # (benchmarks/shared_cores.py). OpenMP reads this when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "4000")
    from executor_service.heap import begin_start, end_imports

    begin_start()
    # torch takes a second to import: settings are checked first.
    from executor_service.engine.device import DeviceLostError
    from executor_service.model.devices import DeviceError
    from executor_service.model.errors import ModelSourceError
    from executor_service.parallel.workers import WorkerStartError
    from executor_service.server import Server
    from executor_service.sizing import SizeError
    from service_shell.address import AddressError
    from service_shell.otlp import TracingError
    from service_shell.pem import TlsError
    from service_shell.recording_file import RecordingError
    from service_shell.watched_file import FileError

    end_imports()

    async def serve() -> int:
        return await Server(config).run()

    try:
        return asyncio.run(serve())
    except (
        SizeError,
        ModelSourceError,
        DeviceError,
        DeviceLostError,
        WorkerStartError,
        AddressError,
        TlsError,
        RecordingError,
        FileError,
        TracingError,
    ) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
