"""The planning core: pure functions over NumPy columns. Read `plan.py` first."""
