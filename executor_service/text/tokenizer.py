"""Text to token ids and back, with every id checked against the model.

The wrapped tokenizer says how text is cut; the model says which ids exist. The two may differ both ways: Gemma 3's
tokenizer knows an image token that the text model has no embedding for, and Qwen pads its embedding with rows that
spell nothing. Ids that come from outside, and those that ``encode`` makes of outside text, are therefore checked
against ``vocab_size``, the rows of the model's embedding: a wrong one would fail a whole batch on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from executor_service.text.errors import (
    ChatTemplateMissingError,
    InvalidChatError,
    InvalidTextError,
    UnknownTokenError,
)


class SpecialTokens(Enum):
    """What ``decode`` does with special tokens, such as end of text."""

    SKIP = auto()
    KEEP = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn of a chat. Which roles exist is for the model's template to say: usually system, user, assistant."""

    role: str
    content: str


class TokenizerBackend(Protocol):
    """The part of ``transformers.PreTrainedTokenizerBase`` that is used here."""

    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> Any: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...


class Tokenizer:
    """The tokenizer of one model, whose embedding has ``vocab_size`` rows."""

    def __init__(self, backend: TokenizerBackend, *, vocab_size: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._num_backend_tokens = len(backend)
        added = {token_id for token_id, token in backend.added_tokens_decoder.items() if token.special}
        self._special_ids = frozenset(backend.all_special_ids) | added

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def has_chat_template(self) -> bool:
        return bool(self._backend.chat_template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids as ``generate`` would be given them: with the beginning-of-text token if the model is used to one.

        Empty text may give no ids at all. Raises InvalidTextError, and UnknownTokenError if the text spells out a
        special token that the model has no embedding for.
        """
        check_unicode(text)
        token_ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens, verbose=False)
        self.validate(token_ids)
        return token_ids

    def decode(self, token_ids: Sequence[int], special_tokens: SpecialTokens = SpecialTokens.SKIP) -> str:
        """The text of ``token_ids``; bytes that are not UTF-8 become U+FFFD. Raises UnknownTokenError.

        Spaces before punctuation are never tidied away: a later token would change the text of earlier ones.
        """
        self.validate(token_ids)
        text: str = self._backend.decode(
            list(token_ids),
            skip_special_tokens=special_tokens is SpecialTokens.SKIP,
            clean_up_tokenization_spaces=False,
        )
        return text

    def apply_chat_template(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Token ids of the chat, up to where the assistant's answer starts.

        Raises ChatTemplateMissingError, InvalidChatError, InvalidTextError or UnknownTokenError.
        """
        if not self.has_chat_template:
            raise ChatTemplateMissingError
        if not messages:
            raise InvalidChatError("a chat needs at least one message")
        for message in messages:
            check_unicode(message.role)
            check_unicode(message.content)
        conversation = [{"role": message.role, "content": message.content} for message in messages]
        try:
            prompt: str = self._backend.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        except Exception as error:
            # A template is the model author's own program: it refuses a chat by raising whatever it likes.
            raise InvalidChatError(f"the model's chat template refuses these messages: {error}") from error
        # The template has written the special tokens itself.
        return self.encode(prompt, add_special_tokens=False)

    def spells_nothing(self, token_id: int, special_tokens: SpecialTokens = SpecialTokens.SKIP) -> bool:
        """Whether ``decode`` leaves the token out: a special token to be skipped, or a padding row of the embedding."""
        if token_id >= self._num_backend_tokens:
            return True
        return special_tokens is SpecialTokens.SKIP and token_id in self._special_ids

    def validate(self, token_ids: Sequence[int]) -> None:
        """Raises UnknownTokenError at the first id outside ``[0, vocab_size)``."""
        for position, token_id in enumerate(token_ids):
            if not 0 <= token_id < self._vocab_size:
                raise UnknownTokenError(token_id=token_id, vocab_size=self._vocab_size, position=position)


def check_unicode(text: str) -> None:
    """Raises InvalidTextError if ``text`` has lone surrogates, which are what is left of bytes that were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidTextError(position=error.start) from None
