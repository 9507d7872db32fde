"""The vocabulary of a GGUF file: GPT-2's byte-level BPE with the pre-tokenizer that the file names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from backends.local.gguf_metadata import read_gguf_metadata
from backends.local.vocabulary import Vocabulary, VocabularyError

_CONTROL = 3
_USER_DEFINED = 4
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def read_gguf_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of a GGUF file; raises `VocabularyError`, `GgufError` or `OSError`."""
    metadata = read_gguf_metadata(path)
    try:
        return _build(metadata, path=path)
    except KeyError as exc:
        raise VocabularyError(f"{path} lacks the key {exc} in its metadata") from exc


def _build(metadata: Mapping[str, Any], *, path: Path) -> Vocabulary:
    tokens = metadata["tokenizer.ggml.tokens"]
    kinds = metadata["tokenizer.ggml.token_type"]
    tokenizer = _build_tokenizer(metadata, tokens=tokens, path=path)
    special = {index: token for index, token in enumerate(tokens) if kinds[index] == _CONTROL}
    user_defined = {index: token for index, token in enumerate(tokens) if kinds[index] == _USER_DEFINED}
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special.values()])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in user_defined.values()])
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    eos_id = metadata.get("tokenizer.ggml.eos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", False) and bos_id is not None:
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    return Vocabulary(
        tokenizer=tokenizer,
        is_byte_level=True,
        added={**special, **user_defined},
        special=frozenset(special),
        bos_token="" if bos_id is None else tokens[bos_id],
        eos_token="" if eos_id is None else tokens[eos_id],
        chat_template=metadata.get("tokenizer.chat_template"),
    )


def _build_tokenizer(metadata: Mapping[str, Any], *, tokens: Sequence[str], path: Path) -> Tokenizer:
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise VocabularyError(f"{path} has a tokenizer of the sort {model!r}; from a GGUF 'gpt2' is read")
    name = metadata.get("tokenizer.ggml.pre", "default")
    pre_tokenizer = _PRE_TOKENIZERS.get(name)
    if pre_tokenizer is None:
        known = ", ".join(_PRE_TOKENIZERS)
        raise VocabularyError(f"{path} has the pre-tokenizer {name!r}; these are known: {known}")
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    ids = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    # The space between the halves is the first one that is not a token's own first character.
    left, right = merge[0], merge[1:]
    head, _, tail = right.partition(" ")
    return left + head, tail


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _tiktoken(numbers: str) -> pre_tokenizers.PreTokenizer:
    pattern = Regex("|".join((_CONTRACTIONS, _WORDS, numbers, _SIGNS, _SPACES)))
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The names are those of llama.cpp's `tokenizer.ggml.pre`.
_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _single_digits,
    "llama-bpe": lambda: _tiktoken(r"\p{N}{1,3}"),
    "qwen2": lambda: _tiktoken(r"\p{N}"),
}
