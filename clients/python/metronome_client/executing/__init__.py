"""For executors of one's own: what every one of them does by the contract, whatever computes its tokens.

    wanted.py    what is looked at before a request is taken
    request.py   a request: its row of the books, and the stream that its tokens go to
    books.py     the books: told to a scheduler, and moved by its plans
    plans.py     whether a plan can be carried out, and what to run without one

Each can be used without the others. docs/bring-your-own.md walks through an executor that uses them all.
"""

from __future__ import annotations

from metronome_client.executing.books import Books, Work
from metronome_client.executing.plans import plan_fault, safe_plan
from metronome_client.executing.request import Request
from metronome_client.executing.wanted import Wanted, checked, known_tokens

__all__ = ["Books", "Request", "Wanted", "Work", "checked", "known_tokens", "plan_fault", "safe_plan"]
