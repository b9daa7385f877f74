"""Where to stop: the first stop string in a stream of text, whatever the pieces that the text comes in.

* The match is the first to be complete, so that nothing is generated to decide it; of several that end on the same
  character, the longest. ("bc" ends before "abcd" does and wins over it; "X" over "XY".)
* Text that may yet turn out to be the start of a stop string is held: the longest suffix of the text so far that is a
  proper prefix of a stop string. No more than that is held, and what is emitted is never taken back.
* Both depend on the characters only, not on how they were cut into tokens.

The stop strings are the paths of a trie, and each node knows the node of its longest proper suffix (the automaton of
Aho and Corasick, 1975). The held text is then the path to the current node, and a character costs O(1) amortised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from executor_service.text.errors import InvalidStopStringError

MAX_STOP_CHARACTERS = 8192
"""The most characters that the stop strings of one request may have in all; bounds the automaton's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """``text`` may be sent now. ``matched`` is the stop string that has ended the text, if one has."""

    text: str
    matched: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    depth: int
    children: dict[str, _Node] = field(default_factory=dict)
    suffix: _Node | None = None  # None at the root only
    matched: str | None = None  # the longest stop string that the path ends with


class StopMatcher:
    """Watches the text of one request. With ``include_stop`` the stop string itself is emitted too.

    Raises InvalidStopStringError if a stop string is empty or all together exceed MAX_STOP_CHARACTERS.
    """

    def __init__(self, stop_strings: Iterable[str], include_stop: bool = False) -> None:
        self._root = _build_automaton(tuple(stop_strings))
        self._node = self._root
        self._held = ""
        self._include_stop = include_stop
        self._matched: str | None = None

    def push(self, text: str) -> StopResult:
        """The text that is now certain to come before a stop string. What comes after a match is dropped."""
        if self._matched is not None:
            return StopResult(text="", matched=self._matched)
        for position, character in enumerate(text):
            self._node = _step(self._node, character)
            if self._node.matched is not None:
                return self._stop(self._held + text[: position + 1], self._node.matched)
        seen = self._held + text
        num_final = len(seen) - self._node.depth
        self._held = seen[num_final:]
        return StopResult(text=seen[:num_final])

    def flush(self) -> str:
        """The text that is still held, once the text has ended without a stop string. Empty after a match."""
        held, self._held = self._held, ""
        self._node = self._root
        return held

    def _stop(self, seen: str, matched: str) -> StopResult:
        """``seen`` is all text not yet emitted, and ends with ``matched``."""
        self._matched = matched
        self._held = ""
        return StopResult(text=seen if self._include_stop else seen.removesuffix(matched), matched=matched)


def _step(node: _Node, character: str) -> _Node:
    """The node whose path is the longest suffix of this node's path and the character."""
    while character not in node.children and node.suffix is not None:
        node = node.suffix
    return node.children.get(character, node)


def _build_automaton(stop_strings: tuple[str, ...]) -> _Node:
    if not all(stop_strings):
        raise InvalidStopStringError("a stop string must not be empty")
    if sum(map(len, stop_strings)) > MAX_STOP_CHARACTERS:
        raise InvalidStopStringError(f"stop strings must not exceed {MAX_STOP_CHARACTERS} characters in all")
    root = _Node(depth=0)
    for stop_string in stop_strings:
        node = root
        for character in stop_string:
            node = node.children.setdefault(character, _Node(depth=node.depth + 1))
        node.matched = stop_string
    _link_suffixes(root)
    return root


def _link_suffixes(root: _Node) -> None:
    """Breadth first, so that the shorter suffixes of a node are linked before it."""
    queue = deque([root])
    while queue:
        node = queue.popleft()
        for character, child in node.children.items():
            child.suffix = root if node.suffix is None else _step(node.suffix, character)
            child.matched = child.matched or child.suffix.matched
            queue.append(child)
