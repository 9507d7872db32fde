"""Two readings side by side: what only one of them says, and where their words part."""

from __future__ import annotations

from dataclasses import dataclass

from cache.guard.lexicon import Lexicon
from cache.guard.reading import Reading, respell

_MAX_TYPO_WORDS = 8
NEGATING_PREFIXES = frozenset({"un", "in", "im", "ir", "il", "dis", "non", "de", "mis"})
NEGATING_SIZES = (2, 3)


@dataclass(frozen=True, slots=True)
class Comparison:
    """`only_a` and `only_b` are loud words of one side alone; `span_a` and `span_b` what is left of the words
    without their common beginning (`num_before` words) and end (`num_after`).
    """

    a: Reading
    b: Reading
    only_a: frozenset[str]
    only_b: frozenset[str]
    span_a: tuple[str, ...]
    span_b: tuple[str, ...]
    num_before: int
    num_after: int


def compare(a: Reading, b: Reading, lexicon: Lexicon) -> Comparison:
    """Compare two readings; a misspelt word counts as the word it is near to, where that stands on the other side."""
    if a.words != b.words:
        a, b = _without_typos(a, b, lexicon)
    before = 0
    shorter = min(len(a.words), len(b.words))
    while before < shorter and a.words[before] == b.words[before]:
        before += 1
    after = 0
    while after < shorter - before and a.words[-1 - after] == b.words[-1 - after]:
        after += 1
    return Comparison(
        a,
        b,
        only_a=a.loud - b.loud,
        only_b=b.loud - a.loud,
        span_a=a.words[before : len(a.words) - after],
        span_b=b.words[before : len(b.words) - after],
        num_before=before,
        num_after=after,
    )


def _without_typos(a: Reading, b: Reading, lexicon: Lexicon) -> tuple[Reading, Reading]:
    """Write misspelt words of either side as the other side has them."""
    if max(len(a.loud - b.loud), len(b.loud - a.loud)) > _MAX_TYPO_WORDS:
        return a, b
    new_a, new_b = _corrected(a, b, lexicon), _corrected(b, a, lexicon)
    return new_a, new_b


def _corrected(reading: Reading, other: Reading, lexicon: Lexicon) -> Reading:
    """Correct the words of a reading that no list knows and that are near to one of the other side."""
    here, there = frozenset(reading.tokens), frozenset(other.tokens)
    unknown = [word for word in here - there if len(word) > 3 and not _is_known(word, lexicon)]
    targets = sorted(word for word in there - here if len(word) > 3) if unknown else ()
    if not targets:
        return reading
    right: dict[str, str] = {}
    for word in unknown:
        target = next((known for known in targets if is_typo(word, known, lexicon)), None)
        if target is not None and (_is_known(target, lexicon) or word > target):  # of two unknown ones, one way only
            right[word] = target
    return respell(reading, right, lexicon) if right else reading


def is_typo(one: str, other: str, lexicon: Lexicon) -> bool:
    """Tell whether two words are the same word, one of them misspelt: near to each other, and not both known."""
    shorter = min(len(one), len(other))
    if shorter < 4 or abs(len(one) - len(other)) > 2 or not (one.isalpha() and other.isalpha() and one.isascii()):
        return False
    if _is_known(one, lexicon) and _is_known(other, lexicon):
        return False
    if _is_negated(one, other) or _is_negated(other, one):  # `unsafe` is no slip of `safe`
        return False
    allowed = 2 if shorter >= 7 else 1
    return abs(len(one) - len(other)) <= allowed and _distance_at_most(one, other, allowed)


def _is_negated(longer: str, root: str) -> bool:
    size = len(longer) - len(root)
    return size in NEGATING_SIZES and longer[:size] in NEGATING_PREFIXES and longer.endswith(root)


def _is_known(word: str, lexicon: Lexicon) -> bool:
    forms = lexicon.remembered.get(word)
    return (forms[0] if forms else lexicon.stem(word)) in lexicon.known


def _distance_at_most(one: str, other: str, limit: int) -> bool:
    """Tell whether at most `limit` letters were added, left out, changed or exchanged with a neighbour."""
    if one[:2] != other[:2] and one[-2:] != other[-2:] and set(one) != set(other):
        return False  # a quick no: a slip leaves the beginning or the end as it was, or the letters
    before_last: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        line = [row]
        for column, opposite in enumerate(other, start=1):
            cost = 0 if letter == opposite else 1
            best = min(last[column] + 1, line[column - 1] + 1, last[column - 1] + cost)
            is_swap = row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == opposite
            line.append(min(best, before_last[column - 2] + 1) if is_swap else best)
        if min(line) > limit:
            return False
        before_last, last = last, line
    return last[-1] <= limit
