"""The engine loop and its books. Knows arrays and torch through the runner, nothing of gRPC.

Read loop.py first: it is one iteration, top to bottom.
"""
