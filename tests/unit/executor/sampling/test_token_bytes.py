"""The bytes of tokens are those that llguidance reads in the tokenizer's description, where they are told at all."""

from __future__ import annotations

from collections.abc import Callable

import llguidance
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from executor_service.sampling.token_bytes import SPECIAL, token_bytes
from support.tiny_models import byte_tokenizer
from support.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer


def copy_of(make: Callable[[], PreTrainedTokenizerFast]) -> Tokenizer:
    return Tokenizer.from_str(make().backend_tokenizer.to_str())


@pytest.mark.parametrize("make", [byte_tokenizer, byte_level_tokenizer, byte_fallback_tokenizer])
def test_they_are_those_of_the_description(make: Callable[[], PreTrainedTokenizerFast]) -> None:
    backend = copy_of(make)
    backend.add_tokens([AddedToken("<shaped like one>"), "added word", "ä日", " ", "▁"])
    backend.add_special_tokens(["[special]"])
    described = llguidance.LLTokenizer(backend.to_str())
    told = token_bytes(backend)
    assert told is not None
    ids = range(backend.get_vocab_size(with_added_tokens=True))
    assert [spelled.removeprefix(SPECIAL) for spelled in told] == [described.decode_bytes([i]) for i in ids]
    assert [spelled.startswith(SPECIAL) for spelled in told] == [described.is_special_token(i) for i in ids]


def spaced_before(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


def spaced_before_by_words(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])


def of_words(backend: Tokenizer) -> None:
    backend.decoder = decoders.WordPiece()


def without_decoder(backend: Tokenizer) -> None:
    backend.decoder = None


def with_holes(backend: Tokenizer) -> None:
    backend.model = models.BPE({"a": 0, "b": 2}, [])


def of_odd_bytes(backend: Tokenizer) -> None:
    backend.model = models.BPE({"<0x": 0}, [])


@pytest.mark.parametrize(
    "change", [spaced_before, spaced_before_by_words, of_words, without_decoder, with_holes, of_odd_bytes]
)
def test_they_are_not_told_for_kinds_that_llguidance_knows_better(change: Callable[[Tokenizer], None]) -> None:
    backend = copy_of(byte_fallback_tokenizer)
    change(backend)
    assert token_bytes(backend) is None
