"""Cycles are looked for among what a process has made since its start. In a process of its own: it is all of it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc

from executor_service.heap import begin_start, end_imports, end_start


class Node:
    pass


def cycle():
    node = Node()
    node.itself = node


begin_start()
cycle()  # as good as a module
end_imports()
kept = Node()
cycle()
assert not gc.isenabled()
end_start()
assert gc.isenabled()
assert not any(isinstance(each, Node) for each in gc.get_objects())
cycle()
assert sum(isinstance(each, Node) for each in gc.get_objects()) == 1
gc.collect()
assert not any(isinstance(each, Node) for each in gc.get_objects())
gc.unfreeze()
unseen = [each for each in gc.get_objects() if isinstance(each, Node)]
assert len(unseen) == 2
assert kept in unseen
"""


def test_what_the_start_made_is_looked_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
