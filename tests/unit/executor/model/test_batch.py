"""The ragged batch: slots and starts follow from what the engine gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor_service.model.batch import RaggedBatch


def batch(**changes: Any) -> RaggedBatch:
    """Two decodes and a chunk of three, blocks of four."""
    columns: dict[str, Any] = {
        "token_ids": np.array([5, 6, 7, 8, 9]),
        "positions": np.array([0, 9, 6, 7, 8]),
        "query_lens": np.array([1, 1, 3], dtype=np.int32),
        "context_lens": np.array([1, 10, 9], dtype=np.int32),
        "block_tables": np.array([[3, 0, 0], [2, 1, 9], [8, 7, 6]], dtype=np.int32),
        "num_decodes": 2,
        "logits_rows": np.array([0, 1, 4]),
    }
    return RaggedBatch(**columns | changes)


def test_a_token_is_stored_at_its_blocks_offset() -> None:
    assert batch().slot_mapping(4).tolist() == [12, 37, 30, 31, 24]


def test_the_blocks_entered_are_those_whose_first_slot_is_written() -> None:
    assert batch().entered_blocks(4).tolist() == [3, 6]


def test_query_starts_delimit_each_requests_tokens() -> None:
    assert batch().query_starts().tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.array([5])},
        {"context_lens": np.array([1, 10], dtype=np.int32)},
        {"num_decodes": 3},
        {"context_lens": np.array([1, 10, 2], dtype=np.int32)},
    ],
    ids=["token columns", "request columns", "a chunk among decodes", "a chunk beyond its context"],
)
def test_a_batch_that_contradicts_itself_is_our_own_bug(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        batch(**changes)
