"""Tell the language of a text by its script and, in the Latin script, by its small words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.language_words import LETTERS, WORDS
from validators.options import read, read_words, refuse_unknown
from validators.roles import role_of

_SCRIPTS = {
    "ar": "\u0600-\u06ff\u0750-\u077f",
    "el": "\u0370-\u03ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "ko": "\uac00-\ud7af\u1100-\u11ff",
    "th": "\u0e00-\u0e7f",
    "kana": "\u3040-\u30ff",
    "han": "\u3400-\u4dbf\u4e00-\u9fff",
    "cyrillic": "\u0400-\u04ff",
    "latin": "A-Za-z\u00c0-\u024f",
}
_PATTERNS = {name: re.compile(f"[{inside}]") for name, inside in _SCRIPTS.items()}
_WORD = re.compile(r"[A-Za-z\u00c0-\u024f'\u2019]+")
_UKRAINIAN = re.compile("[\u0456\u0457\u0454\u0491]")
LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "he", "hi", "it", "ja", "ko", "nl", "pt", "ru", "th", "uk", "zh")
MAX_CHARS = 20_000
"""No more of a text is read: its language does not change the answer after that."""
_CHARS_A_WORD = {"han": 3, "kana": 2, "ko": 2, "th": 2}
"""How many letters of Latin script a character says as much as."""
_LETTER_WEIGHT = 0.5
_MARGIN = 1.3


def language_of(text: str) -> str | None:
    """Name a text's language, one of `LANGUAGES`; None where its words do not tell."""
    text = text[:MAX_CHARS]
    return _language(text, _letters(text))


def _letters(text: str) -> Counter[str]:
    """Count a text's letters by script, as Latin ones: a Chinese character says as much as three."""
    return Counter(
        {name: len(pattern.findall(text)) * _CHARS_A_WORD.get(name, 1) for name, pattern in _PATTERNS.items()}
    )


def _language(text: str, letters: Counter[str]) -> str | None:
    script, count = letters.most_common(1)[0]
    if count == 0:
        return None
    match script:
        case "latin":
            return _latin_language(text)
        case "han" | "kana":
            return "ja" if letters["kana"] * 10 > letters["han"] else "zh"
        case "cyrillic":
            return "uk" if len(_UKRAINIAN.findall(text)) * 50 > count else "ru"
        case _:
            return script


def _latin_language(text: str) -> str | None:
    words = [word.lower().replace("\u2019", "'") for word in _WORD.findall(text)]
    letters = Counter(text.lower())
    scores = {
        language: sum(word in known for word in words)
        + _LETTER_WEIGHT * sum(letters[letter] for letter in LETTERS.get(language, ""))
        for language, known in WORDS.items()
    }
    (first, best), (_, second) = sorted(scores.items(), key=lambda pair: -pair[1])[:2]
    return first if best >= 1 and best >= _MARGIN * second and best * 12 >= len(words) else None


class Language:
    """Refuse a text in a language that is not among `allow`.

    A text shorter than `min_chars` letters passes, and so does one whose language cannot be told. At the input the
    user's texts are read, at the output what is said: no tools' arguments, which are in no language.
    """

    name = "language"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, allow: Collection[str], *, min_chars: int = 20) -> None:
        self._allow = frozenset(allow)
        self._min_chars = min_chars

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse a text in another language, naming that."""
        if context.stage is Stage.INPUT and role_of(context) != "user":
            return PASSED
        if context.where.endswith((".tool_call", ".arguments")):
            return PASSED
        read = text[:MAX_CHARS]
        letters = _letters(read)
        if letters.total() < self._min_chars:
            return PASSED
        found = _language(read, letters)
        if found is None or found in self._allow:
            return PASSED
        return Verdict(Outcome.BLOCK, reason=f"it is in a language that is not allowed ({found})")


def create_language(options: Options) -> Language:
    """Build the check from `allow` and `min_chars`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("allow", "min_chars"))
    allow = read_words(options, "allow", LANGUAGES)
    min_chars = read(options, "min_chars", int, default=20)
    if min_chars < 1:
        raise ValueError("min_chars: must be at least 1")
    return Language(allow, min_chars=min_chars)
