"""What each token of a fast tokenizer stands for, in bytes, as llguidance tells it from the tokenizer's description.

To write and read the description takes two seconds and more for 262,144 tokens, all of them with the interpreter's lock
held; this takes a third of a second. Kinds of tokenizer that are not told for sure here are left to llguidance.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

# A token that text cannot spell starts with this byte, which no UTF-8 has.
SPECIAL = b"\xff"
_BYTE_TOKEN = re.compile("<0x[0-9A-Fa-f]{2}>")


def token_bytes(backend: Tokenizer) -> list[bytes] | None:
    """By id; empty where a token has no bytes. None for a tokenizer that llguidance should read itself."""
    parts = list(_parts(backend.decoder))
    kinds = {part["type"] for part in parts}
    if _adds_text(backend) or not kinds & {"ByteFallback", "ByteLevel"}:
        return None
    num_tokens = backend.get_vocab_size(with_added_tokens=True)
    names = [name for name in map(backend.id_to_token, range(num_tokens)) if name is not None]
    if len(names) < num_tokens:
        return None
    added = backend.get_added_tokens_decoder()
    for token_id, token in added.items():
        names[token_id] = token.content  # not as text is normalized
    result = _fallback(names, _space(parts)) if "ByteFallback" in kinds else _byte_level(names)
    if result is None:
        return None
    for token_id, token in added.items():
        if token.special or (token.content.startswith("<") and token.content.endswith(">")):
            result[token_id] = SPECIAL + token.content.encode()
        elif not result[token_id]:
            result[token_id] = token.content.encode()
    return result


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, those of sequences one by one."""
    if component is None:
        return
    steps = [json.loads(component.__getstate__())]
    while steps:
        step = steps.pop(0)
        inner = [step[key] for key in ("normalizers", "pretokenizers", "decoders") if key in step]
        if not inner:
            yield step
        steps[:0] = inner[0] if inner else []


def _adds_text(backend: Tokenizer) -> bool:
    """Whether it puts a space before a text, which llguidance takes away for what stands inside of an answer."""
    before = {part["type"] for component in (backend.normalizer, backend.pre_tokenizer) for part in _parts(component)}
    return bool(before & {"Prepend", "Metaspace"})


def _space(decoder: list[dict[str, Any]]) -> str:
    """The character that tokens have for a space."""
    spaces = [
        step["pattern"]["String"]
        for step in decoder
        if step["type"] == "Replace" and step["content"] == " " and len(step["pattern"].get("String", "")) == 1
    ]
    return spaces[-1] if spaces else " "


def _fallback(names: list[str], space: str) -> list[bytes] | None:
    """SentencePiece's way: text as it is but for its spaces, and tokens of a single byte, ``<0x0A>``."""
    result = [name.replace(space, " ").encode() for name in names]
    for token_id in [token_id for token_id, name in enumerate(names) if name.startswith("<0x")]:
        if not _BYTE_TOKEN.fullmatch(names[token_id]):
            return None
        result[token_id] = bytes.fromhex(names[token_id][3:5])
    return result


def _byte_level(names: list[str]) -> list[bytes]:
    """GPT-2's way: each byte has a character of its own."""
    byte_of = _bytes_of_characters()
    return [bytes([byte_of[character] for character in name]) if byte_of.keys() >= set(name) else b"" for name in names]


def _bytes_of_characters() -> dict[str, int]:
    """Printable characters of Latin-1 stand for themselves; the other bytes have those from U+0100 on, in order."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
