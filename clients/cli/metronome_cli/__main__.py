"""`python -m metronome_cli` is `metronome`."""

from __future__ import annotations

from metronome_cli.main import main

if __name__ == "__main__":
    main()
