"""Tokenizing, and each way in which a caller can get it wrong."""

from __future__ import annotations

from copy import deepcopy

import pytest

from executor_service.text.errors import (
    ChatTemplateMissingError,
    InvalidChatError,
    InvalidTextError,
    TextError,
    UnknownTokenError,
)
from executor_service.text.tokenizer import ChatMessage, SpecialTokens, Tokenizer
from support.tiny_tokenizers import CORPUS, byte_fallback_tokenizer, byte_level_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['user', 'assistant'] %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ message.role }}: {{ message.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
USER = ChatMessage(role="user", content="The cat")


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(byte_level_tokenizer(), vocab_size=len(byte_level_tokenizer()))


@pytest.fixture
def chat_tokenizer() -> Tokenizer:
    backend = deepcopy(byte_level_tokenizer())
    backend.chat_template = TEMPLATE
    return Tokenizer(backend, vocab_size=len(backend))


@pytest.mark.parametrize("text", ["", *CORPUS])
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_skipped_or_kept(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("<bos>The cat<eos>")
    assert tokenizer.decode(token_ids) == "The cat"
    assert tokenizer.decode(token_ids, SpecialTokens.KEEP) == "<bos>The cat<eos>"


def test_spaces_before_punctuation_stay(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("The cat , it 's .")) == "The cat , it 's ."


@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("cat \udcff!", 4), ("😀\ude00", 1)])
def test_lone_surrogates_are_refused_with_their_position(tokenizer: Tokenizer, text: str, position: int) -> None:
    with pytest.raises(InvalidTextError, match=f"at character {position}") as raised:
        tokenizer.encode(text)
    assert raised.value.position == position


@pytest.mark.parametrize("token_id", [-1, 10**12])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(UnknownTokenError, match=f"token id {token_id} is not in the model's vocabulary"):
        tokenizer.decode([0, token_id])


def test_text_that_spells_a_token_the_model_lacks_is_refused() -> None:
    backend = deepcopy(byte_fallback_tokenizer())
    vocab_size = len(backend)
    backend.add_tokens(["<image>"], special_tokens=True)
    tokenizer = Tokenizer(backend, vocab_size=vocab_size)
    with pytest.raises(UnknownTokenError) as raised:
        tokenizer.encode("The <image> cat")
    assert raised.value.token_id == vocab_size


def test_padding_rows_of_the_embedding_spell_nothing() -> None:
    num_tokens = len(byte_level_tokenizer())
    tokenizer = Tokenizer(byte_level_tokenizer(), vocab_size=num_tokens + 64)
    assert tokenizer.spells_nothing(num_tokens + 63)
    assert tokenizer.decode([num_tokens + 63]) == ""
    assert not tokenizer.spells_nothing(num_tokens - 1)


def test_special_tokens_spell_nothing_unless_kept(tokenizer: Tokenizer) -> None:
    assert tokenizer.spells_nothing(1)
    assert not tokenizer.spells_nothing(1, SpecialTokens.KEEP)


def test_chat_ends_where_the_answer_starts_and_has_one_bos(chat_tokenizer: Tokenizer) -> None:
    token_ids = chat_tokenizer.apply_chat_template([USER, ChatMessage(role="assistant", content="sat"), USER])
    text = chat_tokenizer.decode(token_ids, SpecialTokens.KEEP)
    assert text == "<bos>user: The cat\nassistant: sat\nuser: The cat\nassistant:"


def test_base_model_says_that_it_has_no_chat_template(tokenizer: Tokenizer) -> None:
    assert not tokenizer.has_chat_template
    with pytest.raises(ChatTemplateMissingError, match="no chat template, since it is a base model: send the prompt"):
        tokenizer.apply_chat_template([USER])


@pytest.mark.parametrize(
    ("messages", "error", "words"),
    [
        ([], InvalidChatError, "at least one message"),
        ([ChatMessage(role="wizard", content="The cat")], InvalidChatError, "no such role"),
        ([ChatMessage(role="user", content="\ud800")], InvalidTextError, "lone surrogate"),
    ],
)
def test_bad_chats_are_refused(
    chat_tokenizer: Tokenizer, messages: list[ChatMessage], error: type[TextError], words: str
) -> None:
    with pytest.raises(error, match=words):
        chat_tokenizer.apply_chat_template(messages)


def test_template_that_is_not_a_template_is_reported_not_raised_through() -> None:
    backend = deepcopy(byte_level_tokenizer())
    backend.chat_template = "{% for %}"
    with pytest.raises(InvalidChatError, match="refuses these messages"):
        Tokenizer(backend, vocab_size=len(backend)).apply_chat_template([USER])
