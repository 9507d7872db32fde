"""A model's vocabulary: its tokenizer, and what has to be known around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer


class VocabularyError(ValueError):
    """The model's tokenizer is of a sort that is not read here; the message names it and what is read."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What turns text into ids and back.

    The tokenizer neither cuts nor pads. `is_byte_level` tells how its tokens spell bytes: in GPT-2's alphabet, or
    as text with `<0xNN>` for single bytes. `added` holds the tokens that are spelled as they are; those of them in
    `special` steer the model and are no part of an answer's text.
    """

    tokenizer: Tokenizer
    is_byte_level: bool
    added: Mapping[int, str]
    special: frozenset[int]
    bos_token: str
    eos_token: str
    chat_template: str | None
