"""A text as the guard reads it: canonical words in order, what is counted, what is denied, what is quoted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cache.guard.lexicon import SILENT, Lexicon

_TOKEN = re.compile(
    r"\d+(?:st|nd|rd|th)\b|\d+(?:[.,:/-]\d+)*|[a-z]+\d[a-z0-9]*|c\+\+|[cf]#|[a-z]+(?:'[a-z]+)?|[£$€¥%°℃℉]"
    r"|[\u3400-\u9fff]+|[^\W\d_a-z]+|[,.;?!，。；？！、]"
)
_HAS_QUOTE = re.compile('[`"“「『《]')
_HAS_LITERAL = re.compile('[`"“「『《=!<>+*/%&|^~_.-]')
_HAS_SYMBOL = re.compile(r"[=!<>+*/%&|^~_-]|\w\.\w")
_NOTHING: frozenset[str] = frozenset()
_NUMBER = "#"
_BREAKS = frozenset(",.;?!，。；？！")
_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|「([^」]+)」|『([^』]+)』|《([^》]+)》")
_SYMBOLS = re.compile(r"(?<!\S)(?:[=!<>+*/%&|^~-]{1,3}|--?[a-z][\w-]*|\w+(?:[_.]\w+)+(?:\(\))?)(?!\S)")
_NAME = re.compile(r"(?<=[a-z0-9,;:)] )[A-Z][A-Za-z0-9]*")
LETTER_A = "lettera"
"""The word that stands for the letter A where it names something."""
_CAPITAL_A = re.compile(r"(?<=[a-z0-9,;] )A\b")
_OTHER_LETTER = re.compile(r"(?<=[a-z0-9,;] )[B-HJ-Z]\b")
_CONTRACTIONS = {
    "can't": ("can", "not"), "cannot": ("can", "not"), "cant": ("can", "not"), "won't": ("will", "not"),
    "wont": ("will", "not"), "dont": ("do", "not"), "doesnt": ("do", "not"), "didnt": ("do", "not"),
    "isnt": ("be", "not"), "arent": ("be", "not"), "wasnt": ("be", "not"), "shan't": ("shall", "not"),
    "shouldnt": ("should", "not"), "wouldnt": ("would", "not"), "couldnt": ("could", "not"), "let's": ("let", "us"),
}  # fmt: skip
_TENS = frozenset({20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0})
_CURRENCY = frozenset("£$€¥")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it counts: `value` in the dimension's first unit, or as written where no unit follows."""

    value: str
    dimension: str | None


@dataclass(frozen=True, slots=True)
class Literals:
    """What counts letter by letter: capitalised names, quoted texts, and operators or names of code."""

    names: frozenset[str]
    quotes: frozenset[str]
    symbols: frozenset[str]


_NO_LITERALS = Literals(_NOTHING, _NOTHING, _NOTHING)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the rules compare. `words` are canonical, silent ones left out; numbers stand as `#` and their value.

    `loud` are the words that carry the question's content. `breaks` are the places in `words` before which a clause
    ends. `num_denials` counts explicit negations, `implicit_denials` verbs that deny by themselves.
    """

    words: tuple[str, ...]
    loud: frozenset[str]
    quantities: tuple[Quantity, ...]
    num_denials: int
    implicit_denials: frozenset[str]
    literals: Literals
    breaks: tuple[int, ...]
    tokens: tuple[str, ...]


def read(text: str, lexicon: Lexicon) -> Reading:
    """Read a text; equal texts give equal readings."""
    plain = text.replace("’", "'").replace("‘", "'") if not text.isascii() else text
    if _CAPITAL_A.search(plain) and _OTHER_LETTER.search(plain):
        plain = _CAPITAL_A.sub(LETTER_A, plain)  # beside B it is no article
    lowered = plain.lower()
    return _read_tokens(tuple(_TOKEN.findall(lowered)), _literals(plain, lowered, lexicon), lexicon)


def _literals(plain: str, lowered: str, lexicon: Lexicon) -> Literals:
    has_names = plain[1:] != lowered[1:]
    if not has_names and not _HAS_LITERAL.search(lowered):
        return _NO_LITERALS
    return Literals(
        names=frozenset(_names(plain, lexicon)) if has_names else _NOTHING,
        quotes=frozenset(_quotes(lowered)) if _HAS_QUOTE.search(lowered) else _NOTHING,
        symbols=frozenset(_SYMBOLS.findall(lowered)) if _HAS_SYMBOL.search(lowered) else _NOTHING,
    )


def respell(reading: Reading, right: Mapping[str, str], lexicon: Lexicon) -> Reading:
    """Read again with some tokens spelt otherwise."""
    tokens = tuple(right.get(token, token) for token in reading.tokens)
    return _read_tokens(tokens, reading.literals, lexicon)


def _read_tokens(tokens: tuple[str, ...], literals: Literals, lexicon: Lexicon) -> Reading:
    forms = _forms(tokens, lexicon)
    words, breaks = _words(forms, lexicon)
    spoken = frozenset(words)
    denials = spoken & lexicon.negators
    loud = spoken - lexicon.quiet - denials
    quantities: tuple[Quantity, ...] = ()
    if any(word[0] == _NUMBER for word in words):
        quantities, units = _quantities(forms, lexicon)
        loud -= units  # they are compared with their numbers
    return Reading(
        words=tuple(words),
        loud=loud,
        quantities=quantities,
        num_denials=sum(1 for word in words if word in denials) if denials else 0,
        implicit_denials=loud & lexicon.implicit_negators,
        literals=literals,
        breaks=breaks,
        tokens=tokens,
    )


def _forms(tokens: Sequence[str], lexicon: Lexicon) -> list[str]:
    """Give each token's forms: words stemmed, contractions opened, Chinese cut into the words that are known."""
    forms: list[str] = []
    remembered = lexicon.remembered
    for token in tokens:
        found = remembered.get(token)
        if found is None:
            found = _opened(token, lexicon)
            lexicon.remember(token, found)
        forms += found
    return forms


def _opened(token: str, lexicon: Lexicon) -> tuple[str, ...]:
    if token in _CONTRACTIONS:
        return tuple(lexicon.stem(part) for part in _CONTRACTIONS[token])
    if "'" in token:
        word, _, ending = token.partition("'")
        is_denied = ending == "t" and word.endswith("n")
        return (lexicon.stem(word[:-1]), "not") if is_denied else (lexicon.stem(word), ending)
    if "\u3400" <= token[0] <= "\u9fff":
        return tuple(_segments(token, lexicon))
    return (lexicon.stem(token),)


def _segments(run: str, lexicon: Lexicon) -> Iterator[str]:
    """Cut a run of Chinese characters: the longest known word at each place, else the single character."""
    place = 0
    while place < len(run):
        for size in range(min(lexicon.max_cjk_chars, len(run) - place), 1, -1):
            if run[place : place + size] in lexicon.cjk_words:
                break
        else:
            size = 1
        yield run[place : place + size]
        place += size


def _words(forms: Sequence[str], lexicon: Lexicon) -> tuple[list[str], tuple[int, ...]]:
    """Put one canonical word in place of each form or phrase; also tells where clauses end."""
    words: list[str] = []
    breaks: list[int] = []
    heads, canonical_of = lexicon.heads, lexicon.canonical_of
    place, end = 0, len(forms)
    while place < end:
        form = forms[place]
        size, word = _phrase(forms, place, lexicon) if form in heads else (0, None)
        if not size:
            size, word = 1, canonical_of.get(form)
            if word is None:
                word = f"{_NUMBER}{_plain(form)}" if form[0].isdecimal() else form
        place += size
        if word:
            if word in _BREAKS:
                breaks.append(len(words))
            else:
                words.append(word)
    return words, tuple(place for place in breaks if 0 < place < len(words))


def _phrase(forms: Sequence[str], place: int, lexicon: Lexicon) -> tuple[int, str | None]:
    """Return how many forms at `place` are one phrase and what stands for it, or 0."""
    for phrase in lexicon.phrases.get(tuple(forms[place : place + 2]), ()):
        size = len(phrase.words)
        if size == 2 or tuple(forms[place : place + size]) == phrase.words:
            return size, phrase.canonical
    return 0, None


def _quantities(forms: Sequence[str], lexicon: Lexicon) -> tuple[tuple[Quantity, ...], frozenset[str]]:
    """Return what is counted, and the canonical words that are units of it."""
    found: list[Quantity] = []
    units: set[str] = set()
    place = 0
    while place < len(forms):
        form = forms[place]
        is_digits = form[0].isdecimal() and not form.endswith(("st", "nd", "rd", "th"))
        if not is_digits and form not in lexicon.numbers:
            place += 1
            continue
        before = forms[place - 1] if place else ""
        value = _plain(form) if is_digits else f"{lexicon.numbers[form]:g}"
        place += 1
        if not is_digits and lexicon.numbers[form] in _TENS and place < len(forms):
            value, place = _with_ones(value, forms, place, lexicon)
        if is_digits and forms[place : place + 1] == ["k"] and _is_number(value):
            value, place = f"{float(value) * 1000:g}", place + 1
        quantity, name = _quantity(value, before, forms[place : place + 2], lexicon)
        found.append(quantity)
        units.update(lexicon.canonical(part) for part in name.split())
    return tuple(found), frozenset(units)


def _with_ones(value: str, forms: Sequence[str], place: int, lexicon: Lexicon) -> tuple[str, int]:
    ones = lexicon.numbers.get(forms[place], 0.0)
    return (f"{float(value) + ones:g}", place + 1) if 0 < ones < 10 else (value, place)


def _quantity(value: str, before: str, after: Sequence[str], lexicon: Lexicon) -> tuple[Quantity, str]:
    """Give the number its unit: a sign before it, or one or two words behind it; also returns the unit's name."""
    names = [before] if before in _CURRENCY else [" ".join(after[:2]), after[0] if after else ""]
    name = next((name for name in names if name in lexicon.units), "")
    if not name or not _is_number(value):
        return Quantity(value, None), ""
    unit = lexicon.units[name]
    return Quantity(f"{float(value) * unit.factor:.9g}", unit.dimension), name


def _plain(digits: str) -> str:
    """Write a number without the commas between its thousands."""
    return re.sub(r",(?=\d{3}(?!\d))", "", digits) if "," in digits else digits


def _is_number(value: str) -> bool:
    return value.replace(".", "", 1).isdecimal()


def _quotes(text: str) -> Iterator[str]:
    for groups in _QUOTED.findall(text):
        yield " ".join(next(filter(None, groups), "").split())


def _names(text: str, lexicon: Lexicon) -> Iterator[str]:
    """Give the capitalised words that do not begin a sentence."""
    for name in _NAME.findall(text):
        canonical = lexicon.canonical(lexicon.stem(name.lower()))
        if canonical != SILENT and canonical not in lexicon.quiet:
            yield canonical
