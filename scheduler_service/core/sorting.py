"""Sorting by keys, and selecting the first of many by a rule.

Keys are the columns of a table, [num_keys, num_items], compared one after the other. What a list is short enough to be
sorted by is written down once; the queue is not, and is asked pair by pair: a rule is a compiled function
`comes_before(context, a, b)`, to which no two items are alike. So what comes out depends on nothing but keys and rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scheduler_service.core.compiled import compiled, lean, rule
from scheduler_service.core.rows import count_up, zeros
from scheduler_service.core.state import IntArray

Context = TypeVar("Context")
ComesBefore = Callable[[Context, int, int], bool]

# So many are sorted by insertion.
_FEW = 8


@compiled
def places_in_order(keys: IntArray) -> IntArray:
    """Which item comes first, second, ...; where all keys are equal, the one that stands before. A merge sort."""
    count = keys.shape[1]
    source, target = count_up(count), zeros(count)
    for start in range(0, count, _FEW):
        _insert(source, start, min(start + _FEW, count), keys)
    width = _FEW
    while width < count:
        for start in range(0, count, 2 * width):
            _merge(source, target, start, min(start + width, count), min(start + 2 * width, count), keys)
        source, target = target, source
        width *= 2
    return source


@rule
def _is_less(keys: IntArray, one: int, other: int) -> bool:
    for key in range(len(keys)):
        if keys[key, one] != keys[key, other]:
            return keys[key, one] < keys[key, other]
    return False


@lean
def _insert(places: IntArray, start: int, end: int, keys: IntArray) -> None:
    for index in range(start + 1, end):
        place = places[index]
        while index > start and _is_less(keys, place, places[index - 1]):
            places[index] = places[index - 1]
            index -= 1
        places[index] = place


@lean
def _merge(source: IntArray, target: IntArray, start: int, middle: int, end: int, keys: IntArray) -> None:
    left, right = start, middle
    is_in_order = middle >= end or not _is_less(keys, source[middle], source[middle - 1])
    for index in range(start, end):
        takes_left = left < middle and (is_in_order or right >= end)
        if takes_left or (left < middle and not _is_less(keys, source[right], source[left])):
            target[index] = source[left]
            left += 1
        else:
            target[index] = source[right]
            right += 1


@compiled
def first_in_order(items: IntArray, count: int, comes_before: ComesBefore[Context], context: Context) -> IntArray:
    """The `count` first (all, if there are fewer), in order: a heap of them, at whose top the last of them stands."""
    num_first = min(max(count, 0), len(items))
    first = items[:num_first].copy()
    make_heap(first, 0, num_first, comes_before, context, True)
    for place in range(num_first, len(items)):
        if num_first > 0 and comes_before(context, items[place], first[0]):
            first[0] = items[place]
            sift_down(first, 0, num_first, 0, comes_before, context, True)
    for num_left in range(num_first - 1, 0, -1):
        first[0], first[num_left] = first[num_left], first[0]
        sift_down(first, 0, num_left, 0, comes_before, context, True)
    return first


@lean
def make_heap(
    heap: IntArray, start: int, count: int, comes_before: ComesBefore[Context], context: Context, last_on_top: bool
) -> None:
    """Make a heap of `count` items from `start` on, at whose top the last or the first of them stands."""
    for place in range(count // 2 - 1, -1, -1):
        sift_down(heap, start, count, place, comes_before, context, last_on_top)


@lean
def sift_down(
    heap: IntArray,
    start: int,
    count: int,
    place: int,
    comes_before: ComesBefore[Context],
    context: Context,
    last_on_top: bool,
) -> None:
    """Mend a heap of `count` items from `start` on after the one at `place` was put there."""
    item = heap[start + place]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count:
            right, left = heap[start + child + 1], heap[start + child]
            child += comes_before(context, right, left) != last_on_top
        if comes_before(context, item, heap[start + child]) != last_on_top:
            break
        heap[start + place] = heap[start + child]
        place = child
    heap[start + place] = item
