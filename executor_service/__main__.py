"""`python -m executor_service` and `metronome-executor`."""

from __future__ import annotations

import asyncio
import os
import sys

from executor_service.config import parse_config
from executor_service.telemetry import configure_logging


def main() -> None:
    config = parse_config(sys.argv[1:], os.environ)
    configure_logging(config.log_format, config.log_level)
    # torch takes a second to import: settings are checked first.
    from executor_service.address import AddressError
    from executor_service.build import CacheTooSmallError
    from executor_service.model.errors import ModelSourceError
    from executor_service.recording_file import RecordingError
    from executor_service.server import Server

    async def serve() -> int:
        return await Server(config).run()

    try:
        status = asyncio.run(serve())
    except (CacheTooSmallError, ModelSourceError, AddressError, RecordingError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    sys.stderr.flush()
    # The engine's thread and gRPC's may be busy still; nothing that they hold outlives the process.
    os._exit(status)


if __name__ == "__main__":
    main()
