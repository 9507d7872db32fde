"""Phrases as one expression: their words in their usual forms, or their letters in the writings that hide them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from validators.patterns import alternation, in_word, quote
from validators.recognise import Recogniser
from validators.shadow import normalise

LONGEST_GAP = 4
"""Blanks, or a hyphen, that may stand between two words of a phrase."""
MAX_PHRASES = 5_000
_GAP = rf"[\s_/-]{{1,{LONGEST_GAP}}}"
_ENDINGS = "(?:'s|s'|s|es|ed|d|ing|er|ers)?"
_LONGEST_ENDING = 4
_LOOKS = {"a": "a4@", "e": "e3", "i": "i1!", "o": "o0", "s": "s5$", "t": "t7", "l": "l1", "b": "b8", "g": "g9"}
_HIDING = r"[\s._*-]?"


def phrase_recogniser(
    name: str, phrases: Iterable[str], *, inflected: bool = False, disguised: bool = False
) -> Recogniser:
    """Recognise phrases as whole words, in upper or lower case.

    With `inflected` a phrase's last word may have an English ending (lobby: lobbies, lobbied, lobbying). With
    `disguised` single characters may stand between its letters and look-alike digits in their place (A.C.M.E, 4cme).
    In scripts without blanks between words a phrase is found anywhere.
    Raises `ValueError` for an empty phrase or too many.
    """
    known = sorted({normalise(phrase.strip()).text.lower() for phrase in phrases}, key=lambda one: (-len(one), one))
    if not known or not known[-1]:
        raise ValueError("must be a list of words or phrases, none of them empty")
    if len(known) > MAX_PHRASES:
        raise ValueError(f"has {len(known)} phrases; at most {MAX_PHRASES} are taken")
    write = _disguised if disguised else _inflected if inflected else _plain
    bound = [write(phrase) for phrase in known if _has_borders(phrase[-1])]
    free = [write(phrase) for phrase in known if not _has_borders(phrase[-1])]
    longest = max(map(_longest, known)) * (2 if disguised else 1)
    return Recogniser(name, alternation(bound, free), longest, _begins_word)


def _begins_word(text: str, start: int, _end: int) -> bool:
    return start == 0 or not (_has_borders(text[start]) and in_word(text[start - 1]))


def _has_borders(char: str) -> bool:
    """Tell whether a character stands in words that blanks or signs set apart: not in Chinese, Japanese, Thai."""
    return in_word(char) and not _WITHOUT_BLANKS.match(char)


_WITHOUT_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


def _longest(phrase: str) -> int:
    words = phrase.split()
    return sum(map(len, words)) + LONGEST_GAP * (len(words) - 1) + _LONGEST_ENDING + 1


def _plain(phrase: str) -> str:
    return _GAP.join(map(quote, phrase.split()))


def _inflected(phrase: str) -> str:
    *first, last = phrase.split()
    return _GAP.join([*map(quote, first), _forms(last)])


def _forms(word: str) -> str:
    """Write a word with its regular endings: English ones behind ASCII letters, none behind others."""
    if len(word) < 3 or not (word.isascii() and word[-1].isalpha()):
        return quote(word)
    if re.search(r"[^aeiou]y\Z", word):
        return f"{quote(word[:-1])}(?:y|y's|ies|ied|ying|ier|iers)"
    if word.endswith("e"):
        return f"{quote(word[:-1])}(?:e|e's|es|ed|ing|er|ers)"
    doubled = f"(?:{quote(word[-1])}(?:ed|ing|er|ers))" if re.search(r"[^aeiou][aeiou][bdgklmnprt]\Z", word) else ""
    return f"{quote(word)}(?:{doubled}|{_ENDINGS})" if doubled else f"{quote(word)}{_ENDINGS}"


def _disguised(phrase: str) -> str:
    words = [_HIDING.join(_look(char) for char in word) for word in phrase.split()]
    return rf"[\s._*-]{{0,{LONGEST_GAP}}}".join(words) + "(?:'s|s)?"


def _look(char: str) -> str:
    return f"[{re.escape(_LOOKS[char])}]" if char in _LOOKS else quote(char)
