"""The policy lab: request traces through the real planner and the executor's own books, in virtual time.

Read `simulation.py` first: it is one run, top to bottom.
"""
