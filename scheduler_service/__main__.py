"""`python -m scheduler_service`, or `metronome-scheduler`."""

from __future__ import annotations

import asyncio
import os
import sys


def main() -> None:
    """Run the service until a signal ends it. Exit status 1 if it cannot start, 2 for flags that make no sense."""
    # gRPC's core writes lines that are no events, of what the log tells by itself. It reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from scheduler_service.config import parse_config
    from scheduler_service.profiles import ProfileError, load_profiles
    from scheduler_service.server import serve
    from service_shell.address import AddressError
    from service_shell.logs import configure_logging
    from service_shell.otlp import TracingError
    from service_shell.pem import TlsError
    from service_shell.recording_file import RecordingError
    from service_shell.watched_file import FileError

    config = parse_config(sys.argv[1:], os.environ)
    configure_logging(config.log_format, config.log_level)
    status = 0
    try:
        asyncio.run(serve(config, load_profiles(config.profile, config.profiles_directory)))
    except (AddressError, FileError, ProfileError, RecordingError, TlsError, TracingError) as error:
        print(f"metronome-scheduler: {error}", file=sys.stderr)
        status = 1
    sys.stderr.flush()
    # All is closed. To take the compiled core apart would take half a second, and the system does it at once.
    os._exit(status)


if __name__ == "__main__":
    main()
