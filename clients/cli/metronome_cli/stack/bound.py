"""Launches a service so that it ends with the process that launched it, however that one ends.

    python -m metronome_cli.stack.bound PARENT_PID MODULE ARGUMENTS...

asks the kernel for SIGTERM at the parent's death (Linux; elsewhere it asks for nothing) and becomes `python -m MODULE`.
The request survives the change of program, and making it here needs no code between fork and exec in the parent, which
has threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent and become the service."""
    parent_pid, *service = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent_pid):  # it died before the kernel knew
            sys.exit(1)
    os.execv(sys.executable, [sys.executable, "-m", *service])


if __name__ == "__main__":
    main()
