"""The command line of Metronome: `metronome generate`, `chat`, `state`, `plan`, `up`, `down`, `status` and `run`."""
