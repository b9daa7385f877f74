"""Real tokenizers of both byte-level kinds, small enough to be made in a test.

* ``byte_level_tokenizer``: byte-level BPE as in GPT-2, Llama 3 and Qwen; a token may be any bytes.
* ``byte_fallback_tokenizer``: SentencePiece style as in Llama 2 and Gemma; a character without a token of its own is
  spelled by ``<0xNN>`` tokens, and a space is part of the word after it.
"""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<bos>", "<eos>"

CORPUS = (
    "The cat sat on the mat. The dog sat on the log, and the cat saw the dog.",
    "naïve café, Ångström, e\u0301le\u0300ve, ﬁne",
    "日本語のテキストと中文文本。한국어 텍스트.",
    "smile 😀😁😂 family 👨‍👩‍👧‍👦 flag 🇯🇵 thumbs 👍🏽",
    "def main():\n    return 1\n\tend  of   spaces",
)


@cache
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    # One piece a line, so that merges run across characters and tokens end inside them.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)


@cache
def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Its decoder strips one leading space, as Llama 2's does."""
    pieces = [BOS, EOS, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "T", "h", "e", "c", "a", "t", "s", "日", "."]
    merges = [("T", "h"), ("Th", "e"), ("c", "a"), ("ca", "t"), ("▁", "cat"), ("s", "a"), ("sa", "t"), ("▁", "sat")]
    pieces += [left + right for left, right in merges]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(Regex(" "), "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS)
