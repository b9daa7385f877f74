"""Books in any condition, made by the transitions that an engine makes; and a way to say that nothing has changed."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor_service.engine.books import Books, Status
from executor_service.engine.limits import Limits
from executor_service.kv.prefix_cache import BlockChain, Prefix, PrefixScope
from support.engine import sequence_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a request stands: its lengths, and how much of it is stored.

    Requests of one ``text`` are alike as far as they go, and reuse each other's blocks; 0: it has a text of its own.
    """

    id: int
    status: Status
    num_prompt_tokens: int
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    max_output_tokens: int = 100
    num_preemptions: int = 0
    last_run_iteration: int = 0
    text: int = 0
    reuse_prefix: bool = True


def waiting(id: int, prompt: int = 16) -> Standing:
    return Standing(id=id, status=Status.WAITING, num_prompt_tokens=prompt)


def evicted(id: int, prompt: int = 16, output: int = 1) -> Standing:
    """By recompute."""
    return Standing(id=id, status=Status.WAITING, num_prompt_tokens=prompt, num_output_tokens=output, num_preemptions=1)


def prefilling(id: int, prompt: int, stored: int, last_run_iteration: int = 0) -> Standing:
    return Standing(
        id=id,
        status=Status.RUNNING,
        num_prompt_tokens=prompt,
        num_computed_tokens=stored,
        last_run_iteration=last_run_iteration,
    )


def decoding(id: int, stored: int, last_run_iteration: int = 0, max_output_tokens: int = 100) -> Standing:
    """With one output token so far."""
    return Standing(
        id=id,
        status=Status.RUNNING,
        num_prompt_tokens=stored,
        num_output_tokens=1,
        num_computed_tokens=stored,
        max_output_tokens=max_output_tokens,
        last_run_iteration=last_run_iteration,
    )


def swapped(id: int, stored: int) -> Standing:
    return Standing(
        id=id, status=Status.SWAPPED, num_prompt_tokens=stored, num_output_tokens=1, num_computed_tokens=stored
    )


def books_with(
    limits: Limits, *standings: Standing, iteration: int = 10, prefix_scope: PrefixScope = PrefixScope.TENANT
) -> Books:
    """Their order of arrival is that of their ids."""
    books = Books(limits, prefix_scope=prefix_scope, capacity=8)
    books.iteration = iteration
    # Those in swap space first: they pass through device blocks and give them back.
    for standing in sorted(standings, key=lambda standing: standing.status is not Status.SWAPPED):
        _add(books, standing)
    books.check_integrity()
    return books


def image_of(books: Books) -> bytes:
    """All of the books' state; equal exactly if nothing has changed."""
    image = io.BytesIO()
    _StatePickler(image).dump(books)
    return image.getvalue()


class _StatePickler(pickle.Pickler):
    def reducer_override(self, thing: object) -> Any:
        """Digests of block chains are no state: they are worked out when they are first asked for."""
        return (bytes, (thing.root,)) if isinstance(thing, BlockChain) else NotImplemented


def _add(books: Books, standing: Standing) -> None:
    first_token = 1000 * standing.text or 1_000_000 + 1000 * standing.id
    tokens = range(first_token, first_token + standing.num_prompt_tokens + standing.num_output_tokens)
    sequence = sequence_of(
        standing.id,
        tokens[: standing.num_prompt_tokens],
        standing.max_output_tokens,
        reuse_prefix=standing.reuse_prefix,
    )
    books.add(sequence)
    for token in tokens[standing.num_prompt_tokens :]:
        sequence.push(token)
    rows = books.rows_of([standing.id])
    row = int(rows[0])
    books["num_output_tokens"][row] = standing.num_output_tokens
    if standing.status is not Status.WAITING:
        prefix = Prefix(
            blocks=books.cached_prefix(row).blocks[: standing.num_computed_tokens // books.limits.block_size]
        )
        num_reused_tokens = prefix.num_tokens(books.limits.block_size)
        num_tokens = np.array([standing.num_computed_tokens - num_reused_tokens], dtype=np.int32)
        books.admit(rows, [prefix])
        books.grow(rows, num_tokens)
        books.advance(rows, num_tokens)
    if standing.status is Status.SWAPPED:
        books.evict_by_swap(row)
    else:
        books["num_preemptions"][row] = standing.num_preemptions
    books["last_run_iteration"][row] = standing.last_run_iteration
