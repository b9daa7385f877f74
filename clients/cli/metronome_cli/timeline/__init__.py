"""What an executor did over time, as a trace that Perfetto opens.

Read `spans.py` first, then where the spans come from (`from_recording.py`, `from_watch.py`), then where they go
(`trace.py`).
"""
