"""The form under which a word is looked up: endings and national spellings that change no meaning are gone."""

from __future__ import annotations

_MIN_STEM = 3
_VOWELS = frozenset("aeiouy")


def stem(word: str) -> str:
    """Return one form for a word's plural, -ing and -ed forms and its British and American spellings.

    The form is a key, not a word: `making` and `make` are both `mak`. Anything but lower-case ASCII stays as it is.
    """
    if len(word) <= _MIN_STEM or not (word.isascii() and word.isalpha()):
        return word
    return _spelling(_tail(_plural(word)))


def _plural(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1]


def _tail(word: str) -> str:
    for ending in ("ing", "ed"):
        kept = word[: -len(ending)]
        if word.endswith(ending) and len(kept) >= _MIN_STEM and any(letter in _VOWELS for letter in kept):
            return kept[:-1] + "y" if ending == "ed" and kept.endswith("i") else kept
    return word


def _spelling(word: str) -> str:
    if len(word) > _MIN_STEM and word.endswith("e"):
        word = word[:-1]
    if len(word) > _MIN_STEM and word[-1] == word[-2]:
        word = word[:-1]  # travelled, traveled; and call becomes cal, always
    if len(word) > 5 and word.endswith("isation"):
        return word[:-7] + "ization"
    if len(word) > 5 and word.endswith("is"):
        return word[:-1] + "z"
    if len(word) > 4 and word.endswith("our"):
        return word[:-2] + "r"
    return word
