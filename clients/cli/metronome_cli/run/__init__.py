"""The main job of `make run`: real prompts at once, shown pass by pass, and the figures at the end.

workload.py    what is asked
directory.py   where the files of a run are, and for how long
progress.py    how far each request is (values and pure transitions)
board.py       all that there is to see
session.py     sends the requests, watches the books, keeps the board
summary.py     the figures at the end
live_view.py   the board in a terminal
plain_view.py  the board as lines, for a pipe or a log
tables.py      what the two draw alike
"""
