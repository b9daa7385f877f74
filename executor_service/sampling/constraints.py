"""Answers of a form: JSON of a schema, text of a regular expression or of a grammar. By llguidance.

A constraint is compiled once, when its request is checked, and told to be broken or without any answer then. Each
answer walks through it with a matcher of its own, which says after every token what may come next: one bit a token of
the vocabulary, in 10 to 300 µs for 262,144 of them, and up to 1 ms where it has not been before. An intricate form
takes up to about 20 ms; beyond that llguidance's limits end the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from tokenizers import Tokenizer

from executor_service.sampling.adjustments import ConstraintKind
from executor_service.sampling.constraint_limits import excess
from executor_service.sampling.deep_thread import DeepThread
from executor_service.sampling.masks import AllowedTokens, Words, num_words_of
from executor_service.sampling.token_bytes import SPECIAL, token_bytes

# JSON may have white space without end, and small models like it: a bound keeps an answer from being nothing else, and
# leaves room to indent by.
_JSON_OPTIONS: llguidance._lib.JsonCompileOptions = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}
_MAX_MESSAGE_CHARACTERS = 300


class ConstraintError(ValueError):
    """A constraint that cannot be kept to; the message is one sentence for its author."""


class ConstraintsNotOfferedError(Exception):
    """The model's tokenizer is of a kind that constraints cannot be told for."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedVocabulary:
    """The tokens of a model as llguidance wants them."""

    tokens: llguidance.LLTokenizer
    # Where the model has no end token, llguidance is given another one, which must not be chosen.
    choosable: AllowedTokens | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledConstraint:
    """A constraint that allows some answer. Any number of answers may start from it."""

    kind: ConstraintKind
    text: str
    start_state: llguidance.LLMatcher
    vocabulary: PreparedVocabulary

    def start(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self.start_state.deep_copy(), self.vocabulary)


class LLGuidanceMatcher:
    """The walk of one answer. Not thread-safe."""

    def __init__(self, state: llguidance.LLMatcher, vocabulary: PreparedVocabulary) -> None:
        self._state = state
        self._choosable = vocabulary.choosable
        self._words: Words = np.zeros(num_words_of(vocabulary.tokens.vocab_size), dtype=np.int32)

    @property
    def is_complete(self) -> bool:
        return self._state.is_stopped() and not self._state.is_error()

    @property
    def failure(self) -> str:
        error = _one_line(self._state.get_error())
        return f"its constraint cannot be kept to: {error}" if error else ""

    def narrow(self, words: Words) -> None:
        self._state.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        if self._state.is_error():  # a form too intricate to go on with: llguidance would let it end here
            words[:] = 0
            return
        words &= self._words[: len(words)]
        if self._choosable is not None:
            words &= self._choosable.words(len(words))

    def push(self, token_id: int) -> None:
        self._state.consume_token(token_id)


class ConstraintCompiler:
    """Compiles constraints for the vocabulary of one model, one at a time, whoever asks. Thread-safe."""

    def __init__(self, tokenizer: Any, *, vocab_size: int, end_token_ids: Collection[int]) -> None:
        """``tokenizer``: of transformers. ``vocab_size``: logits of a row.

        Prepares the vocabulary. For 262,144 tokens that takes more than a second of one core, most of it with the
        interpreter's lock held, so it is done before anybody is served. That it cannot be done for a tokenizer is told
        when a constraint comes.
        """
        self._vocab_size = vocab_size
        self._thread = DeepThread("constraints")
        self._vocabulary: PreparedVocabulary | None = None
        self._why_not = ""
        try:
            self._vocabulary = _prepare(tokenizer, vocab_size, sorted(end_token_ids))
        except Exception as error:  # whatever tokenizers are made of
            self._why_not = f"constraints are not offered for this model's tokenizer: {_one_line(str(error))}"

    def compile(self, kind: ConstraintKind, text: str) -> CompiledConstraint:
        """Raises ConstraintError or ConstraintsNotOfferedError. May take a second, without the interpreter's lock."""
        if self._vocabulary is None:
            raise ConstraintsNotOfferedError(self._why_not)
        if too_large := excess(kind, text):
            raise ConstraintError(too_large)
        return self._thread.call(self._compile, kind, text, self._vocabulary)

    def _compile(self, kind: ConstraintKind, text: str, vocabulary: PreparedVocabulary) -> CompiledConstraint:
        try:
            grammar = _grammar_of(kind, text)
        except ValueError as error:
            raise ConstraintError(_one_line(str(error))) from error
        limits = llguidance.LLParserLimits(verbose_errors=False)
        state = llguidance.LLMatcher(vocabulary.tokens, grammar, log_level=0, limits=limits)
        if state.is_error():
            raise ConstraintError(_one_line(state.get_error()))
        first = np.full(num_words_of(self._vocab_size), -1, dtype=np.int32)
        LLGuidanceMatcher(state, vocabulary).narrow(first)  # answers that start from here have it from then on
        if not np.unpackbits(first.view(np.uint8), bitorder="little")[: self._vocab_size].any():
            raise ConstraintError("no answer can keep to it")
        return CompiledConstraint(kind=kind, text=text, start_state=state, vocabulary=vocabulary)


def _prepare(tokenizer: Any, vocab_size: int, end_token_ids: list[int]) -> PreparedVocabulary:
    """Raises whatever a tokenizer of an old kind, or an unknown decoder, leads to."""
    # The tokenizer may know tokens that the model has no logits for, and the model logits without tokens.
    num_tokens = max(len(tokenizer), vocab_size)
    stand_in = len(tokenizer) - 1
    tokens = _llguidance_tokens(tokenizer.backend_tokenizer, num_tokens, end_token_ids or [stand_in])
    choosable = None if end_token_ids else AllowedTokens(np.setdiff1d(np.arange(vocab_size), [stand_in]))
    return PreparedVocabulary(tokens=tokens, choosable=choosable)


def _llguidance_tokens(backend: Tokenizer, num_tokens: int, end_token_ids: list[int]) -> llguidance.LLTokenizer:
    spelled = token_bytes(backend)
    if spelled is None:
        # What `llguidance.hf` does, without a copy of the tokenizer, which takes as long as the rest.
        return llguidance.LLTokenizer(backend.to_str(), n_vocab=num_tokens, eos_token=end_token_ids)
    spelled += [SPECIAL + f"<[{token_id}]>".encode() for token_id in range(len(spelled), num_tokens)]
    vocabulary = _Vocabulary(backend, spelled, end_token_ids[0])
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(vocabulary), eos_token=end_token_ids)


class _Vocabulary:
    """A tokenizer as llguidance takes one that is not described to it. It tells what each token stands for, and cuts
    text of which no letter is for the model to choose into the tokens that the model is used to."""

    bos_token_id: int | None = None

    def __init__(self, backend: Tokenizer, tokens: list[bytes], eos_token_id: int) -> None:
        self._backend = backend
        self.tokens = tokens
        self.eos_token_id = eos_token_id

    def __call__(self, text: str) -> list[int]:
        token_ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return token_ids


def _grammar_of(kind: ConstraintKind, text: str) -> str:
    """Raises ValueError for JSON that is none; all else is told by the compilation."""
    match kind:
        case ConstraintKind.JSON_SCHEMA if text.lstrip().startswith("{"):
            return llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
        case ConstraintKind.JSON_SCHEMA:  # true and false are schemas too, and take no options
            return llguidance.LLMatcher.grammar_from_json_schema(text)
        case ConstraintKind.REGEX:
            return llguidance.LLMatcher.grammar_from_regex(text)
        case ConstraintKind.GRAMMAR:
            return llguidance.LLMatcher.grammar_from_lark(text)


def _one_line(message: str) -> str:
    """What stands before llguidance's picture of the place."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    pictures = next((i for i, line in enumerate(lines) if " | " in f" {line} "), len(lines))
    return " ".join(line for line in lines[:pictures] if line)[:_MAX_MESSAGE_CHARACTERS]
