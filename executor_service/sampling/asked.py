"""How a request's row says what it asks for. Apart from `logprobs.py`, so that the books are read without torch."""

from __future__ import annotations

NO_LOGPROBS = -1
