"""Lists of rows, and of figures beside them: the few operations on them that the rules have in common."""

from __future__ import annotations

import numpy as np

from scheduler_service.core.compiled import compiled, lean
from scheduler_service.core.state import BoolArray, IntArray


@compiled
def zeros(count: int) -> IntArray:
    """So many zeros."""
    return np.zeros(count, dtype=np.int64)


@compiled
def nowhere(count: int) -> BoolArray:
    """A mask that is false at so many places."""
    return np.zeros(count, dtype=np.bool_)


@compiled
def places_where(mask: BoolArray) -> IntArray:
    """The places at which a mask is true, ascending."""
    count = 0
    for place in range(len(mask)):
        count += mask[place]
    places, count = np.empty(count, dtype=np.int64), 0
    for place in range(len(mask)):
        if mask[place]:
            places[count] = place
            count += 1
    return places


@compiled
def those_at(items: IntArray, places: IntArray) -> IntArray:
    """The items at these places, in this order."""
    taken = np.empty(len(places), dtype=np.int64)
    for index in range(len(places)):
        taken[index] = items[places[index]]
    return taken


@compiled
def those_where(items: IntArray, mask: BoolArray, value: bool) -> IntArray:
    """The items at whose places a mask has this value."""
    count = 0
    for place in range(len(items)):
        count += mask[place] == value
    taken, count = np.empty(count, dtype=np.int64), 0
    for place in range(len(items)):
        if mask[place] == value:
            taken[count] = items[place]
            count += 1
    return taken


@compiled
def joined(items: IntArray, others: IntArray) -> IntArray:
    """These, then the others."""
    both = np.empty(len(items) + len(others), dtype=np.int64)
    for place in range(len(items)):
        both[place] = items[place]
    for place in range(len(others)):
        both[len(items) + place] = others[place]
    return both


@lean
def total(items: IntArray) -> int:
    """Their sum."""
    sum_of_all = 0
    for item in items:
        sum_of_all += item
    return sum_of_all


@compiled
def count_up(count: int) -> IntArray:
    """The numbers from 0 on."""
    numbers = np.empty(count, dtype=np.int64)
    for number in range(count):
        numbers[number] = number
    return numbers


@lean
def mark(mask: BoolArray, places: IntArray, value: bool) -> None:
    """Write a value at these places."""
    for place in places:
        mask[place] = value
