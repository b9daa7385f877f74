"""How large a constraint may be: to compile one takes a time that grows faster than its text.

Within these bounds that is a few seconds of one core for the worst that is known: a sequence of what may be left out,
as in `a?a?a?...`, which takes minutes and gigabytes where it has a hundred thousand bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from executor_service.sampling.adjustments import ConstraintKind

MAX_BYTES = {ConstraintKind.JSON_SCHEMA: 1 << 15, ConstraintKind.GRAMMAR: 1 << 14, ConstraintKind.REGEX: 1 << 12}
_MAX_PATTERN_BYTES = MAX_BYTES[ConstraintKind.REGEX]
# Texts count too: a schema may stand within a grammar, and its patterns are texts.
_LITERAL = re.compile(r'/(?:\\.|[^/\\\n])*/|"(?:\\.|[^"\\\n])*"')
_SHORT_LITERAL = 256  # characters; such ones are no burden, however many


def excess(kind: ConstraintKind, text: str) -> str:
    """What of it is too large, in words; empty if nothing is."""
    num_bytes, most = len(text.encode()), MAX_BYTES[kind]
    if num_bytes > most:
        return f"it has {num_bytes} bytes and may have {most}"
    num_pattern_bytes = sum(len(pattern.encode()) for pattern in _patterns(kind, text))
    if num_pattern_bytes > _MAX_PATTERN_BYTES:
        return f"its regular expressions have {num_pattern_bytes} bytes and may have {_MAX_PATTERN_BYTES} in all"
    return ""


def _patterns(kind: ConstraintKind, text: str) -> Iterator[str]:
    match kind:
        case ConstraintKind.REGEX:
            yield text
        case ConstraintKind.GRAMMAR:
            yield from (found[0] for found in _LITERAL.finditer(text) if len(found[0]) > _SHORT_LITERAL)
        case ConstraintKind.JSON_SCHEMA:
            try:
                yield from _patterns_of_schema(json.loads(text))
            except (ValueError, RecursionError):  # the compiler tells its author what is wrong
                return


def _patterns_of_schema(schema: Any) -> Iterator[str]:
    found = [schema]
    while found:
        node = found.pop()
        if isinstance(node, list):
            found.extend(node)
        elif isinstance(node, dict):
            found.extend(node.values())
            if isinstance(pattern := node.get("pattern"), str):
                yield pattern
            if isinstance(by_pattern := node.get("patternProperties"), dict):
                yield from by_pattern
