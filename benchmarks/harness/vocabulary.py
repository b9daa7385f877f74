"""A tokenizer with a vocabulary of any size, for figures that must not need a model: random words over the bytes."""

from __future__ import annotations

import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def random_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes, then come words that follow from their number, and last an end token."""
    draw = random.Random(0)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    printable = [chr(byte) for byte in range(256) if chr(byte) in alphabet]
    others = sorted(set(alphabet) - set(printable))
    # In GPT-2's alphabet printable bytes stand for themselves, and the rest, in their order, for what follows byte 255.
    symbols = iter(others)
    vocabulary = {chr(byte) if chr(byte) in printable else next(symbols): byte for byte in range(256)}
    letters = "abcdefghijklmnopqrstuvwxyz"
    while len(vocabulary) < vocab_size - 1:
        word = "".join(draw.choices(letters, k=draw.randint(2, 9)))
        vocabulary.setdefault(("Ġ" if draw.random() < 0.5 else "") + word, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
