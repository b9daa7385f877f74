"""Speculative decoding: tokens that are guessed, run together with the newest one, and kept as far as they prove right.

    newest token and drafts      a    b    c    d        one pass, one row of logits each
    what is sampled after each   b    c    x    .
                                 ✓    ✓    x is the new token, d is refused: c was not followed by it

A draft is right if it is the token that is sampled at its place, by the request's own rules and its own random number.
So answers are what they would be without drafts, sampled ones too, and each pass gives at least one token.

Drafts lie behind the newest token of their sequence, where the tokens of a pass are read from; the column
``num_draft_tokens`` of the books counts them. Requests whose logits depend on their own output (penalties, constraints,
a least length that is not reached) have none. The last token that an answer may have is never a draft: nothing is
sampled after it. (docs/adr/0015)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from executor_service.engine.books import Books, Rows, Status
from executor_service.engine.ngram import NgramLookup

if TYPE_CHECKING:
    from executor_service.engine.batch_builder import PassInputs

NO_DRAFT = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verified:
    """What a pass has shown of its drafts."""

    counts: NDArray[np.bool_]  # [S] whether a token that was sampled continues its answer
    num_refused: NDArray[np.int32]  # [R] drafts of each row that were wrong, or came after a wrong one


def verify(inputs: PassInputs, next_token_ids: NDArray[np.int64]) -> Verified:
    """``next_token_ids``: [S] as sampled, negative where nothing could be."""
    drafts = inputs.draft_token_ids
    is_first = drafts == NO_DRAFT
    follows = is_first.copy()
    follows[1:] |= drafts[1:] == next_token_ids[:-1]
    # One counts if all that follow the same newest token, up to itself, do.
    places = np.arange(len(drafts))
    last_first = np.maximum.accumulate(np.where(is_first, places, 0))
    last_wrong = np.maximum.accumulate(np.where(follows, -1, places))
    counts = last_wrong < last_first
    num_refused = np.bincount(inputs.sampled[~counts], minlength=len(inputs.rows)).astype(np.int32)
    return Verified(counts=counts, num_refused=num_refused)


def propose(books: Books, rows: Rows, lookup: NgramLookup) -> None:
    """Give those of ``rows`` that decode new drafts in the place of their old ones."""
    if not lookup.max_num_drafts:
        return
    decodes = rows[books["status"][rows] == Status.RUNNING]
    decodes = decodes[books.in_decode(decodes)]
    room = books["max_output_tokens"][decodes] - books["num_output_tokens"][decodes] - 1
    for row, most in zip(decodes.tolist(), room.clip(max=lookup.max_num_drafts).tolist(), strict=True):
        sequence = books.sequence(row)
        drafts = sequence.tokens(0, 0)
        if most > 0 and sequence.may_have_drafts:
            drafts = lookup.propose(sequence.tokens(0, sequence.num_tokens), most)
        sequence.draft(drafts)
        books["num_draft_tokens"][row] = len(drafts)
