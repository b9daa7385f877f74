"""`metronome top`: an executor in a terminal. `history.py` is what was seen, `screen.py` how it is drawn."""
