"""Entry point of the `metronome` script: what can go wrong before and after the command line itself.

Before it are the imports: a package that is missing, and a Ctrl-C while they go on. After it is what is left in the
buffer of stdout, which Python would write, and fail to, with a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

_EXTRA_PACKAGES = ("click", "rich", "yaml")
_EXIT_FAILED = 1


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends an import without a traceback
    # Else gRPC's core writes lines of its own between ours, of what is told anyhow. It reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        import metronome_cli.command_line  # noqa: F401  # takes a moment, and may lack packages
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA_PACKAGES:
            raise
        sys.exit(f"error: the command line needs {package}; install 'metronome-llm[cli]'")
    signal.signal(signal.SIGINT, interrupt)
    status = run_command()
    sys.exit(status if _is_flushed() else max(status, _EXIT_FAILED))


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit status."""
    from metronome_cli.command_line import run_command as run

    return run(arguments)


def _is_flushed() -> bool:
    """Write what stdout still holds; where that fails let the rest go nowhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
