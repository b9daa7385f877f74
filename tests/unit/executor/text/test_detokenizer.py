"""The stream of an incremental detokenizer against decoding all tokens at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_service.text.detokenizer import MAX_UTF8_BYTES, MAX_WINDOW_TOKENS, IncrementalDetokenizer
from executor_service.text.errors import UnknownTokenError
from executor_service.text.tokenizer import SpecialTokens, Tokenizer
from support.depth import num_examples
from support.tiny_tokenizers import CORPUS, byte_fallback_tokenizer, byte_level_tokenizer

BYTE_LEVEL = Tokenizer(byte_level_tokenizer(), vocab_size=len(byte_level_tokenizer()))
BYTE_FALLBACK = Tokenizer(byte_fallback_tokenizer(), vocab_size=len(byte_fallback_tokenizer()))
BOTH = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["byte_level", "byte_fallback"])

EURO = "€".encode()
SMILE = "😀".encode()


def byte_tokens(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    """One token a byte."""
    if tokenizer is BYTE_FALLBACK:
        return [byte_fallback_tokenizer().convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in raw]
    spelled = {BYTE_LEVEL_ALPHABET[byte]: byte for byte in range(256)}
    by_byte = {byte: byte_level_tokenizer().convert_tokens_to_ids(character) for character, byte in spelled.items()}
    return [by_byte[byte] for byte in raw]


def _byte_level_alphabet() -> list[str]:
    """GPT-2's printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTE_LEVEL_ALPHABET = _byte_level_alphabet()


def stream(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    return [*(detokenizer.push([token_id]) for token_id in token_ids), detokenizer.flush()]


def complete_text(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The text of valid tokens that may end within a character, without that character."""
    # Byte-level BPE leaves whole characters whole; byte fallback needs the incomplete one's tokens taken away.
    decoded = (tokenizer.decode(token_ids[:end]) for end in range(len(token_ids), -1, -1))
    return max((text.removesuffix("\ufffd") for text in decoded), key=lambda text: (-text.count("\ufffd"), len(text)))


@BOTH
@pytest.mark.parametrize("text", CORPUS)
def test_stream_equals_decode_without_half_characters(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    pieces = stream(tokenizer, token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids)
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == ""


def test_corpus_has_characters_that_are_spread_over_tokens() -> None:
    for tokenizer in (BYTE_LEVEL, BYTE_FALLBACK):
        token_ids = tokenizer.encode(CORPUS[3])
        assert any("\ufffd" in tokenizer.decode([token_id]) for token_id in token_ids)


@BOTH
@given(text=st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=num_examples(100))
def test_any_valid_text_streams_as_it_decodes(tokenizer: Tokenizer, text: str) -> None:
    token_ids = byte_tokens(tokenizer, text.encode()) + tokenizer.encode(text)
    pieces = stream(tokenizer, token_ids)
    assert "".join(pieces) == tokenizer.decode(token_ids)
    assert not any("\ufffd" in piece for piece in pieces)


@given(token_ids=st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=60))
@settings(max_examples=num_examples(200))
def test_any_byte_level_tokens_stream_as_they_decode_well_formed_or_not(token_ids: list[int]) -> None:
    assert "".join(stream(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids)


@given(token_ids=st.lists(st.integers(0, BYTE_FALLBACK.vocab_size - 1), max_size=60))
@settings(max_examples=num_examples(200))
def test_any_byte_fallback_tokens_stream_at_least_what_decode_shows_of_them(token_ids: list[int]) -> None:
    """More only where ``decode`` gives up well-formed characters together with malformed ones next to them."""
    streamed = iter("".join(stream(BYTE_FALLBACK, token_ids)))
    assert all(character in streamed for character in BYTE_FALLBACK.decode(token_ids).replace("\ufffd", ""))


@BOTH
@given(data=st.data(), text=st.text(st.sampled_from("The cat sat 日本語😀é"), min_size=1, max_size=30))
@settings(max_examples=num_examples(100))
def test_output_text_is_what_it_adds_to_the_prompt(tokenizer: Tokenizer, data: st.DataObject, text: str) -> None:
    token_ids = tokenizer.encode(text)
    num_prompt_tokens = data.draw(st.integers(0, len(token_ids)))
    prompt_text = complete_text(tokenizer, token_ids[:num_prompt_tokens])
    pieces = stream(tokenizer, token_ids[num_prompt_tokens:], token_ids[:num_prompt_tokens])
    assert prompt_text + "".join(pieces) == tokenizer.decode(token_ids)


@BOTH
@given(data=st.data(), text=st.text(st.sampled_from("The cat sat 日本語😀é"), max_size=30))
@settings(max_examples=num_examples(50))
def test_how_tokens_are_grouped_does_not_matter(tokenizer: Tokenizer, data: st.DataObject, text: str) -> None:
    token_ids = tokenizer.encode(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=5)))
    detokenizer = IncrementalDetokenizer(tokenizer)
    groups = [token_ids[start:end] for start, end in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]
    assert "".join(map(detokenizer.push, groups)) + detokenizer.flush() == tokenizer.decode(token_ids)


@BOTH
def test_a_character_comes_out_with_its_last_byte(tokenizer: Tokenizer) -> None:
    assert stream(tokenizer, byte_tokens(tokenizer, SMILE + EURO)) == ["", "", "", "😀", "", "", "€", ""]


def test_a_token_may_end_a_character_and_begin_the_next() -> None:
    begun = byte_tokens(BYTE_LEVEL, SMILE[:3])
    for token_id in range(BYTE_LEVEL.vocab_size):
        token_ids = [*begun, token_id, token_id, *begun, token_id]
        assert "".join(stream(BYTE_LEVEL, token_ids)) == BYTE_LEVEL.decode(token_ids), token_id


@BOTH
def test_flush_gives_an_incomplete_character_as_decode_does(tokenizer: Tokenizer) -> None:
    token_ids = byte_tokens(tokenizer, SMILE[:3])
    assert stream(tokenizer, token_ids) == ["", "", "", tokenizer.decode(token_ids)]


@BOTH
@pytest.mark.parametrize("with_text_after", [False, True])
def test_incomplete_character_does_not_spoil_whole_ones_before_it(tokenizer: Tokenizer, with_text_after: bool) -> None:
    cat = tokenizer.encode("cat") if with_text_after else []
    for cut in range(1, 4):
        incomplete = byte_tokens(tokenizer, SMILE[:cut])
        pieces = stream(tokenizer, [*byte_tokens(tokenizer, SMILE + EURO), *incomplete, *cat])
        assert "".join(pieces) == "😀€" + tokenizer.decode(incomplete + cat)


@BOTH
def test_incomplete_character_of_the_prompt_is_not_part_of_the_output(tokenizer: Tokenizer) -> None:
    for before in (b"", EURO, SMILE * 4):
        prompt = tokenizer.encode("The") + byte_tokens(tokenizer, before + SMILE[:2])
        assert "".join(stream(tokenizer, [], prompt)) == ""
        assert "".join(stream(tokenizer, tokenizer.encode("cat"), prompt)) == "cat"


@BOTH
def test_flush_twice_gives_the_text_once(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    detokenizer.push(byte_tokens(tokenizer, SMILE[:3]))
    assert detokenizer.flush() != ""
    assert detokenizer.flush() == ""


@BOTH
def test_text_is_whole_again_after_malformed_bytes(tokenizer: Tokenizer) -> None:
    token_ids = byte_tokens(tokenizer, EURO[:1] * 6) + tokenizer.encode("The cat") + byte_tokens(tokenizer, SMILE)
    assert "".join(stream(tokenizer, token_ids)) == "\ufffd" * 6 + "The cat😀" == tokenizer.decode(token_ids)


@BOTH
def test_malformed_bytes_are_held_for_four_tokens_at_most(tokenizer: Tokenizer) -> None:
    pieces = stream(tokenizer, byte_tokens(tokenizer, EURO[:1] * 50))
    assert "".join(pieces) == "\ufffd" * 50
    assert all(pieces[MAX_UTF8_BYTES - 1 : -1])


def test_leading_space_follows_from_the_prompt() -> None:
    prompt = BYTE_FALLBACK.encode("The")
    output = BYTE_FALLBACK.encode(" cat sat")
    assert stream(BYTE_FALLBACK, output, prompt)[:2] == [" cat", " sat"]
    assert stream(BYTE_FALLBACK, output)[:2] == ["cat", " sat"]


def test_prompt_context_starts_where_a_character_starts() -> None:
    """Else the byte-fallback decoder would give up the output's bytes together with the prompt's."""
    for num_smiles in range(1, 5):
        prompt = BYTE_FALLBACK.encode("The") + byte_tokens(BYTE_FALLBACK, EURO + SMILE * num_smiles)
        assert "".join(stream(BYTE_FALLBACK, byte_tokens(BYTE_FALLBACK, SMILE), prompt)) == "😀"


@BOTH
def test_replacement_character_that_ends_the_prompt_is_not_repeated(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The cat \ufffd")
    output = tokenizer.encode("sat", add_special_tokens=False)
    assert "".join(stream(tokenizer, output, prompt)) == "sat"


@BOTH
def test_output_completes_the_character_that_the_prompt_began(tokenizer: Tokenizer) -> None:
    for before in (b"", EURO, EURO * 4, SMILE * 4):
        for cut in range(1, 4):
            prompt = tokenizer.encode("The") + byte_tokens(tokenizer, before + SMILE[:cut])
            output = byte_tokens(tokenizer, SMILE[cut:] + EURO)
            assert "".join(stream(tokenizer, output, prompt)) == "😀€"


@BOTH
def test_special_tokens_are_skipped_unless_kept(tokenizer: Tokenizer) -> None:
    cat = tokenizer.encode("The cat", add_special_tokens=False)
    token_ids = [0, *cat, 1, 1, *cat]
    assert "".join(stream(tokenizer, token_ids)) == tokenizer.decode(token_ids)
    keeping = IncrementalDetokenizer(tokenizer, special_tokens=SpecialTokens.KEEP)
    kept = keeping.push(token_ids) + keeping.flush()
    assert kept == tokenizer.decode(token_ids, SpecialTokens.KEEP)
    assert kept.count("<eos>") == 2


@BOTH
def test_unknown_token_is_refused_with_nothing_changed(tokenizer: Tokenizer) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer)
    cat = tokenizer.encode("The cat", add_special_tokens=False)
    with pytest.raises(UnknownTokenError):
        detokenizer.push([*cat, tokenizer.vocab_size])
    assert detokenizer.push(cat) + detokenizer.flush() == "The cat"


class CountingTokenizer(Tokenizer):
    """Counts the tokens that are decoded, which is what detokenizing costs."""

    num_decoded = 0

    def decode(self, token_ids: Sequence[int], special_tokens: SpecialTokens = SpecialTokens.SKIP) -> str:
        self.num_decoded += len(token_ids)
        return super().decode(token_ids, special_tokens)


@pytest.mark.parametrize("kind", ["text", "malformed", "special", "replacement"])
@pytest.mark.parametrize("backend", [byte_level_tokenizer, byte_fallback_tokenizer])
def test_cost_is_linear_whatever_comes(backend: object, kind: str) -> None:
    assert callable(backend)
    plain = BYTE_LEVEL if backend is byte_level_tokenizer else BYTE_FALLBACK
    token_ids = {
        "text": plain.encode("The cat sat 😀 "),
        "malformed": byte_tokens(plain, EURO[:1]),
        "special": [1],
        "replacement": byte_tokens(plain, "\ufffd".encode()),
    }[kind]
    counting = CountingTokenizer(backend(), vocab_size=plain.vocab_size)
    token_ids = token_ids * (600 // len(token_ids))
    stream(counting, token_ids)
    assert counting.num_decoded <= 2 * (MAX_WINDOW_TOKENS + MAX_UTF8_BYTES) * len(token_ids)
