"""Prompts that nobody has seen: seeded random words, each about one token in the usual English vocabularies."""

from __future__ import annotations

import random
from collections.abc import Sequence

_WORDS = (
    "apple autumn bottle bread brick button camera carpet castle cherry circle cloud copper corner cotton "
    "cradle dinner dragon eagle engine feather finger forest galaxy garden ginger glass hammer harbor honey "
    "iron island jacket jungle kettle ladder lemon letter marble market meadow mirror monkey mountain needle "
    "ocean olive orange paper pencil pepper pilot planet pocket potato rabbit river rocket saddle school shadow "
    "silver spider station summer table temple thunder ticket tiger tunnel valley velvet village wagon water "
    "window winter yellow"
)


def make_prompts(count: int, *, num_words: int, seed: str) -> Sequence[str]:
    """Return `count` different texts of `num_words` words; the same seed gives the same texts."""
    draw, words = random.Random(seed), _WORDS.split()
    return [" ".join(draw.choices(words, k=num_words)) for _ in range(count)]


def make_token_prompts(count: int, *, num_tokens: int, seed: str, vocab_size: int) -> Sequence[Sequence[int]]:
    """Return the same in token ids, for an engine that is asked without text; ids at the ends are left out."""
    draw = random.Random(seed)
    low, high = vocab_size // 50, vocab_size * 4 // 5
    return [[draw.randrange(low, high) for _ in range(num_tokens)] for _ in range(count)]
