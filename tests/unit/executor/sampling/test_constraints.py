"""Constraints: what is broken is told at once; what is sampled has the form, with every kind of tokenizer."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from executor_service.sampling.adjustments import Adjuster, Adjustments, Constraint, ConstraintKind
from executor_service.sampling.constraint_limits import MAX_BYTES
from executor_service.sampling.constraints import (
    ConstraintCompiler,
    ConstraintError,
    ConstraintsNotOfferedError,
)
from executor_service.sampling.masks import AllowedTokens, num_words_of
from executor_service.sampling.sampler import NOTHING_ALLOWED, sample
from support.paging import sampling_batch
from support.tiny_models import EOS_TOKEN_ID, VOCAB_SIZE, byte_tokenizer
from support.tiny_tokenizers import byte_fallback_tokenizer, byte_level_tokenizer

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": byte_tokenizer,
    "byte level": byte_level_tokenizer,
    "byte fallback": byte_fallback_tokenizer,
}


def compiler_for(
    tokenizer: PreTrainedTokenizerFast, *, vocab_size: int | None = None, end_token_ids: Collection[int] | None = None
) -> ConstraintCompiler:
    ends = [tokenizer.eos_token_id] if end_token_ids is None else end_token_ids
    return ConstraintCompiler(tokenizer, vocab_size=vocab_size or len(tokenizer), end_token_ids=ends)


COMPILER = compiler_for(byte_tokenizer(), vocab_size=VOCAB_SIZE)


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_text_that_is_not_for_the_model_to_choose_is_cut_as_the_tokenizer_cuts_it(
    make: Callable[[], PreTrainedTokenizerFast],
) -> None:
    tokenizer = make()
    constraint = compiler_for(tokenizer).compile(ConstraintKind.REGEX, "The cat sat")
    adjuster = adjuster_for(constraint)
    forced = tokenizer.encode("The cat sat", add_special_tokens=False)
    for token_id in forced:
        assert allowed(adjuster, len(tokenizer)) == [token_id]
        adjuster.push(token_id)
    assert adjuster.is_complete


def adjuster_for(constraint: Constraint, **asked: Any) -> Adjuster:
    return Adjuster(
        Adjustments(constraint=constraint, **asked),
        prompt_token_ids=np.array([1], dtype=np.int32),
        end_token_ids=np.empty(0, dtype=np.int64),
        min_output_tokens=0,
    )


def allowed(adjuster: Adjuster, vocab_size: int = VOCAB_SIZE) -> list[int]:
    words = np.empty(num_words_of(vocab_size), dtype=np.int32)
    adjuster.write_mask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[:vocab_size]).tolist()


def encoded(text: str) -> list[int]:
    token_ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return token_ids


def generated(adjuster: Adjuster, vocab_size: int, end_token_ids: Collection[int], *, seed: int) -> list[int]:
    """An answer of a model that knows nothing: random logits, until the form is complete or an end token comes."""
    tokens: list[int] = []
    rng = torch.Generator().manual_seed(seed)
    while len(tokens) < 400:
        batch = sampling_batch(1, temperature=1.0, seed=seed, position=len(tokens), adjusters={0: adjuster})
        token_id = int(sample(torch.randn(1, vocab_size, generator=rng), batch))
        assert token_id >= 0
        if token_id in end_token_ids:
            return tokens
        tokens.append(token_id)
        adjuster.push(token_id)
        if adjuster.is_complete:
            return tokens
    raise AssertionError("it does not end")


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@pytest.mark.parametrize("seed", range(5))
def test_what_is_sampled_under_a_schema_is_json_of_it(make: Callable[[], PreTrainedTokenizerFast], seed: int) -> None:
    tokenizer = make()
    constraint = compiler_for(tokenizer).compile(ConstraintKind.JSON_SCHEMA, SCHEMA)
    tokens = generated(adjuster_for(constraint), len(tokenizer), [tokenizer.eos_token_id], seed=seed)
    answer = json.loads(tokenizer.decode(tokens))
    assert set(answer) == {"name", "age"}
    assert isinstance(answer["name"], str)
    assert len(answer["name"]) <= 5
    assert isinstance(answer["age"], int)
    assert answer["age"] <= 99


@pytest.mark.parametrize("make", TOKENIZERS.values(), ids=TOKENIZERS.keys())
@pytest.mark.parametrize("seed", range(5))
def test_what_is_sampled_under_a_regex_matches_it(make: Callable[[], PreTrainedTokenizerFast], seed: int) -> None:
    tokenizer = make()
    expression = r"(cat|dog){1,3}: [0-9]{3}(日本)?"
    constraint = compiler_for(tokenizer).compile(ConstraintKind.REGEX, expression)
    tokens = generated(adjuster_for(constraint), len(tokenizer), [tokenizer.eos_token_id], seed=seed)
    assert re.fullmatch(expression, tokenizer.decode(tokens))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sampled_under_a_grammar_is_of_it(seed: int) -> None:
    constraint = COMPILER.compile(ConstraintKind.GRAMMAR, 'start: "(" start ")" | /[ab]/ ";"')
    text = byte_tokenizer().decode(generated(adjuster_for(constraint), VOCAB_SIZE, [EOS_TOKEN_ID], seed=seed))
    depth = text.index(";") - 1
    assert text == "(" * depth + text[depth] + ";" + ")" * depth


PATTERNS = json.dumps({"items": [{"pattern": "a?" * 1_250}, {"patternProperties": {"b?" * 1_000: True}}]})
BROKEN = [
    (ConstraintKind.JSON_SCHEMA, "", "expected value"),
    (ConstraintKind.JSON_SCHEMA, '{"type":', "EOF while parsing"),
    (ConstraintKind.JSON_SCHEMA, '{"type": "nonsense"}', "Invalid type: nonsense"),
    (ConstraintKind.JSON_SCHEMA, '{"if": {"type": "string"}}', "Unimplemented keys"),
    (ConstraintKind.JSON_SCHEMA, '{"$ref": "http://127.0.0.1:9/schema.json"}', "does not fetch"),
    (ConstraintKind.JSON_SCHEMA, "3", "must be an object or boolean"),
    (ConstraintKind.JSON_SCHEMA, "false", "Unsatisfiable schema"),
    (ConstraintKind.JSON_SCHEMA, '{"type": "integer", "minimum": 5, "maximum": 2}', "Unsatisfiable schema"),
    (ConstraintKind.JSON_SCHEMA, '{"items":' * 3000 + "{}" + "}" * 3000, "recursion limit"),
    (ConstraintKind.REGEX, "a(", "unclosed group"),
    (ConstraintKind.REGEX, r"[^\s\S]", "no answer can keep to it"),
    (ConstraintKind.REGEX, r"(?=a)b", "look-around"),
    (ConstraintKind.REGEX, "a?" * 2_500, "it has 5000 bytes and may have 4096"),
    (ConstraintKind.JSON_SCHEMA, " " * 32_768 + "{}", "it has 32770 bytes and may have 32768"),
    (ConstraintKind.JSON_SCHEMA, PATTERNS, "its regular expressions have 4500 bytes and may have 4096 in all"),
    (ConstraintKind.GRAMMAR, "start: /" + "a?" * 2_500 + "/", "have 5002 bytes and may have 4096 in all"),
    (ConstraintKind.GRAMMAR, "start: %json " + PATTERNS, "bytes and may have 4096 in all"),
    (ConstraintKind.GRAMMAR, "", "."),
    (ConstraintKind.GRAMMAR, "start: ((", "Expected token"),
    (ConstraintKind.GRAMMAR, "start: missing", 'unknown name: "missing"'),
    (ConstraintKind.GRAMMAR, 'start: start "a"', "no answer can keep to it"),
    (ConstraintKind.GRAMMAR, "start: " + "(" * 8_000 + '"a"' + ")" * 8_000, "nested"),
]


@pytest.mark.parametrize(("kind", "text", "why"), BROKEN, ids=[f"{kind}-{why}" for kind, _, why in BROKEN])
def test_what_no_answer_can_keep_to_is_told_in_a_line(kind: ConstraintKind, text: str, why: str) -> None:
    with pytest.raises(ConstraintError, match=re.escape(why) if why != "." else why) as raised:
        COMPILER.compile(kind, text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 300


def chain(link: str, end: str, separator: str, most: int) -> str:
    """As many links as fit, each of which names the next one."""
    names = ["".join(letters) for letters in itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", repeat=3)]
    links = [link.format(name, following) for name, following in itertools.pairwise(names)]
    num_links = (most - 100) // (len(links[0]) + len(separator))
    return separator.join([*links[:num_links], end.format(names[num_links])])


@pytest.fixture
def small_stack() -> Iterator[ThreadPoolExecutor]:
    """A thread whose stack these constraints would go through, and with it the process."""
    with ThreadPoolExecutor(1) as thread:
        before = threading.stack_size(512 << 10)
        thread.submit(int).result()
        threading.stack_size(before)
        yield thread


def test_rules_that_lead_on_and_on_take_no_stack_away(small_stack: ThreadPoolExecutor) -> None:
    rules = "start: AAA\n" + chain("{}:{}", '{}:"1"', "\n", MAX_BYTES[ConstraintKind.GRAMMAR])
    constraint = small_stack.submit(COMPILER.compile, ConstraintKind.GRAMMAR, rules).result()
    assert allowed(adjuster_for(constraint)) == encoded("1")


@pytest.mark.parametrize("link", ['"{}":{{"$ref":"#/{}"}}', '"{}":{{"allOf":[{{"$ref":"#/{}"}}]}}'])
def test_references_that_lead_on_and_on_are_refused_before_the_stack_ends(
    link: str, small_stack: ThreadPoolExecutor
) -> None:
    references = chain(link, '"{}":{{"const":1}}', ",", MAX_BYTES[ConstraintKind.JSON_SCHEMA])
    compiled = small_stack.submit(COMPILER.compile, ConstraintKind.JSON_SCHEMA, '{"$ref":"#/AAA",' + references + "}")
    with pytest.raises(ConstraintError, match="stack level exceeded"):
        compiled.result()


def test_answers_of_one_constraint_do_not_meet() -> None:
    constraint = COMPILER.compile(ConstraintKind.REGEX, "abc|xyz")
    first, second = adjuster_for(constraint), adjuster_for(constraint)
    first.push(*encoded("a"))
    assert allowed(first) == encoded("b")
    assert allowed(second) == sorted(encoded("ax"))


def test_an_end_token_is_allowed_where_the_form_is_complete_and_nowhere_else() -> None:
    adjuster = adjuster_for(COMPILER.compile(ConstraintKind.REGEX, "ab*"))
    assert allowed(adjuster) == encoded("a")
    adjuster.push(*encoded("a"))
    assert allowed(adjuster) == sorted([*encoded("b"), EOS_TOKEN_ID])
    assert not adjuster.is_complete
    adjuster.push(EOS_TOKEN_ID)
    assert adjuster.is_complete


def test_a_form_that_nothing_can_be_added_to_is_complete_without_an_end_token() -> None:
    adjuster = adjuster_for(COMPILER.compile(ConstraintKind.REGEX, "ab"))
    for token_id in encoded("ab"):
        assert not adjuster.is_complete
        adjuster.push(token_id)
    assert adjuster.is_complete


def test_the_empty_answer_is_an_answer() -> None:
    assert allowed(adjuster_for(COMPILER.compile(ConstraintKind.REGEX, ""))) == [EOS_TOKEN_ID]


def test_white_space_in_json_has_an_end() -> None:
    adjuster = adjuster_for(
        COMPILER.compile(ConstraintKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "null"}}')
    )
    for token_id in encoded("[" + " " * 32):
        assert token_id in allowed(adjuster)
        adjuster.push(token_id)
    assert encoded(" ")[0] not in allowed(adjuster)
    assert encoded("]")[0] in allowed(adjuster)


def test_every_end_token_of_the_model_ends_an_answer() -> None:
    compiler = compiler_for(byte_tokenizer(), vocab_size=VOCAB_SIZE, end_token_ids=[EOS_TOKEN_ID, 258])
    assert allowed(adjuster_for(compiler.compile(ConstraintKind.REGEX, ""))) == [EOS_TOKEN_ID, 258]


def test_a_model_without_an_end_token_ends_where_nothing_can_be_added() -> None:
    compiler = compiler_for(byte_tokenizer(), vocab_size=VOCAB_SIZE, end_token_ids=[])
    adjuster = adjuster_for(compiler.compile(ConstraintKind.REGEX, "ab*"))
    adjuster.push(*encoded("a"))
    assert allowed(adjuster) == encoded("b")
    with pytest.raises(ConstraintError, match="no answer"):
        compiler.compile(ConstraintKind.REGEX, "")


@pytest.mark.parametrize("vocab_size", [256, 258, 300, 400])
def test_the_model_may_have_more_logits_than_the_tokenizer_has_tokens_or_fewer(vocab_size: int) -> None:
    compiler = compiler_for(byte_tokenizer(), vocab_size=vocab_size)
    adjuster = adjuster_for(compiler.compile(ConstraintKind.REGEX, "a+"))
    assert allowed(adjuster, vocab_size) == encoded("a")
    assert sample(torch.randn(1, vocab_size), sampling_batch(1, adjusters={0: adjuster})).tolist() == encoded("a")


def test_a_constraint_and_allowed_tokens_that_do_not_meet_leave_nothing() -> None:
    constraint = COMPILER.compile(ConstraintKind.REGEX, "ab")
    adjuster = adjuster_for(constraint, allowed=AllowedTokens(np.array(encoded("xa"))))
    assert allowed(adjuster) == encoded("a")
    adjuster.push(*encoded("a"))
    batch = sampling_batch(1, adjusters={0: adjuster})
    assert sample(torch.randn(1, VOCAB_SIZE), batch).tolist() == [NOTHING_ALLOWED]
    assert adjuster.failure == ""


def test_a_walk_that_went_astray_says_why_and_allows_nothing() -> None:
    adjuster = adjuster_for(COMPILER.compile(ConstraintKind.REGEX, "ab"))
    adjuster.push(*encoded("z"))
    assert allowed(adjuster) == []
    assert not adjuster.is_complete
    assert "doesn't satisfy the grammar" in adjuster.failure
    assert "\n" not in adjuster.failure


def test_a_tokenizer_that_constraints_cannot_be_told_for_is_refused_by_name() -> None:
    class Slow:
        def __len__(self) -> int:
            return 300

    compiler = ConstraintCompiler(Slow(), vocab_size=300, end_token_ids=[1])
    with pytest.raises(ConstraintsNotOfferedError, match="no attribute 'backend_tokenizer'"):
        compiler.compile(ConstraintKind.REGEX, "a")
