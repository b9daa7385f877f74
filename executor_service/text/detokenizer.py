"""Tokens in one by one, text out as soon as it is final, and never half a character.

The text of a token depends on its neighbours: a character may be spread over several tokens, and a leading space
shows or not by what stands before it. So tokens are decoded in a short sliding window, and what is emitted is the
part of the window's text that was not there before:

    window   [ context: text is out | pending: a character not yet complete ]
    text     "… the price is 5 " "\\ufffd"           -> held until its last byte arrives

* The window starts with the prompt's last tokens: the text of the output is what it adds to the prompt's.
* Trailing U+FFFD are held, since a next byte may complete them. After four tokens it cannot (a UTF-8 character has
  at most four bytes), so malformed output is let go as U+FFFD and delays nothing for long.
* The context starts where a character starts. Decoders of byte-fallback tokens (``<0xE2>``) need that: they
  give up a whole run of bytes for one that does not fit.
* The window is bounded, so the whole costs O(tokens).

The concatenation of all that is emitted equals ``decode`` of all tokens at once, ``flush`` giving incomplete last
bytes as the U+FFFD that ``decode`` gives. The one exception: where byte-fallback tokens are malformed, ``decode``
makes U+FFFD of the well-formed characters in the same run too, and here those have already gone out whole.

Technique: the prefix and read offsets of text-generation-inference and vLLM, with emission by characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from executor_service.text.tokenizer import SpecialTokens, Tokenizer

REPLACEMENT_CHARACTER = "\ufffd"
MAX_UTF8_BYTES = 4
PROMPT_CONTEXT_TOKENS = 5
MAX_WINDOW_TOKENS = 12


class NoDetokenizer:
    """The text stream of a request that wants none, and whose tokens nobody needs to read."""

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class IncrementalDetokenizer:
    """The text stream of one request. ``prompt_token_ids`` is read for its last few tokens only."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        special_tokens: SpecialTokens = SpecialTokens.SKIP,
    ) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        self._window: list[int] = []
        self._num_context_tokens = 0
        self._emitted = ""  # the part of the window's text that is out
        self._start_with(prompt_token_ids)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens made final; may be empty. Raises UnknownTokenError, with nothing changed."""
        self._tokenizer.validate(token_ids)
        return "".join(self._push_one(token_id) for token_id in token_ids if not self._spells_nothing(token_id))

    def flush(self) -> str:
        """The text that is still held, once no more tokens will come."""
        text = self._window_text()
        held = self._new_text(text)
        self._emitted = text
        return held

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._window_text()
        settled = text.rstrip(REPLACEMENT_CHARACTER)
        new_text = self._new_text(settled)
        if settled == text:
            self._emitted = text
            if new_text and len(self._window) > MAX_WINDOW_TOKENS:
                self._drop_context()
            self._num_context_tokens = len(self._window)
            return new_text
        if new_text:
            self._emitted = settled
        if len(self._window) - self._num_context_tokens >= MAX_UTF8_BYTES:
            new_text += self._let_go_of_oldest_pending(text)
        return new_text

    def _window_text(self) -> str:
        text = self._decode(self._window)
        whole = self._emitted.rstrip(REPLACEMENT_CHARACTER)
        if text.startswith(whole):
            return text
        # A byte-fallback decoder has given up characters of the context for the pending bytes after them. Those
        # characters are out, and right: decode the pending bytes by themselves.
        self._window = self._window[self._num_context_tokens :]
        self._num_context_tokens = 0
        self._emitted = self._emitted[len(whole) :]
        return self._decode(self._window)

    def _new_text(self, text: str) -> str:
        if text.startswith(self._emitted):
            return text[len(self._emitted) :]
        # The prompt ended within a character, which has been completed since: that character is new.
        return text[len(self._emitted.rstrip(REPLACEMENT_CHARACTER)) :]

    def _drop_context(self) -> None:
        """Keep the tokens of the newest text as context for what follows."""
        self._window = self._window[self._num_context_tokens :]
        self._emitted = self._decode(self._window)

    def _let_go_of_oldest_pending(self, text: str) -> str:
        """Move the window past the context and the oldest pending token, whose bytes are complete or malformed.

        ``text`` is the window's. Returns what is final of it. The new window may start within a character; what of its
        text is already out is known by what is still held, which is at the end of the old and of the new text.
        """
        self._window = self._window[self._num_context_tokens + 1 :]
        self._num_context_tokens = 0
        window_text = self._decode(self._window)
        max_held = len(window_text) - len(window_text.rstrip(REPLACEMENT_CHARACTER))
        num_emitted = min(len(self._emitted), len(text))
        num_final = max(num_emitted, len(text) - max_held)
        self._emitted = window_text[: len(window_text) - (len(text) - num_final)]
        return text[num_emitted:num_final]

    def _start_with(self, prompt_token_ids: Sequence[int]) -> None:
        """Make the last few tokens of the prompt that spell something the context, from where a character starts."""
        spelling = (token_id for token_id in reversed(prompt_token_ids) if not self._spells_nothing(token_id))
        tail = list(islice(spelling, PROMPT_CONTEXT_TOKENS + MAX_UTF8_BYTES - 1))[::-1]
        for start in range(max(0, len(tail) - PROMPT_CONTEXT_TOKENS), -1, -1):
            self._window = tail[start:]
            # The prompt may end within a character too: then see whether the rest is whole without those bytes.
            for end in range(len(self._window), max(0, len(self._window) - MAX_UTF8_BYTES), -1):
                whole = self._decode(self._window[:end])
                if whole == whole.strip(REPLACEMENT_CHARACTER):
                    self._split_context(whole, end)
                    return
        self._split_context("", len(tail))

    def _split_context(self, whole: str, end: int) -> None:
        """``whole`` is the text of the window's first ``end`` tokens, all whole characters."""
        text = self._decode(self._window)
        if text.startswith(whole):
            self._emitted = text
            self._num_context_tokens = len(self._window)
        else:
            self._emitted = whole + self._decode(self._window[end:])
            self._num_context_tokens = end

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, self._special_tokens)

    def _spells_nothing(self, token_id: int) -> bool:
        return self._tokenizer.spells_nothing(token_id, self._special_tokens)
