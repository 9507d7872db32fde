"""The guard's words: read once from the lists beside this file, then only looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cache.guard.stem import stem

_FOLDER = Path(__file__).with_name("words")
_MAX_REMEMBERED = 65_536
SILENT = ""


@dataclass(frozen=True, slots=True)
class Phrase:
    """Several words that are looked up as one; `canonical` may be silent."""

    words: tuple[str, ...]
    canonical: str


@dataclass(frozen=True, slots=True)
class Unit:
    """What a unit measures, and how many of the dimension's first unit it is."""

    dimension: str
    factor: float


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Words by their stems. `opposites`, `akin` and `kinds` are keyed by canonical words.

    `phrases` are keyed by their first two words, the longest first. Words that are `akin` may mean the same, which
    excuses one in another's place and does not join them as synonyms do. `kinds` names the contrast sets of a word,
    `reasons` a set's reason code. `remembered` keeps the forms of tokens already seen (65,536 at most), which changes
    no answer.
    """

    canonical_of: Mapping[str, str]
    phrases: Mapping[tuple[str, ...], tuple[Phrase, ...]]
    heads: frozenset[str]
    quiet: frozenset[str]
    negators: frozenset[str]
    implicit_negators: frozenset[str]
    opposites: Mapping[str, frozenset[str]]
    akin: Mapping[str, frozenset[str]]
    kinds: Mapping[str, frozenset[int]]
    reasons: tuple[str, ...]
    numbers: Mapping[str, float]
    units: Mapping[str, Unit]
    known: frozenset[str]
    cjk_words: frozenset[str]
    max_cjk_chars: int
    forms: Mapping[str, str]
    remembered: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def stem(self, word: str) -> str:
        """Return the form under which a lower-case word stands in the phrases."""
        return self.forms.get(word) or stem(word)

    def remember(self, token: str, forms: tuple[str, ...]) -> None:
        """Keep what a token was opened into, as long as there is room."""
        if len(self.remembered) < _MAX_REMEMBERED:
            self.remembered[token] = forms

    def canonical(self, form: str) -> str:
        """Return what stands for a stem; silent words give an empty text."""
        return self.canonical_of.get(form, form)


def load_lexicon(folder: Path = _FOLDER) -> Lexicon:
    """Read the lists; raises `ValueError` that names the file and line which cannot be read."""
    return _Builder(folder).build()


class _Builder:
    """Reads the lists in the order in which they rest on one another: forms, function words, synonyms, the others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forms: dict[str, str] = {}
        self._canonical: dict[str, str] = {}
        self._phrases: dict[str, list[Phrase]] = {}
        self._quiet: set[str] = set()
        self._opposites: dict[str, set[str]] = {}
        self._kinds: dict[str, set[int]] = {}
        self._reasons: list[str] = []
        self._cjk: set[str] = set()

    def build(self) -> Lexicon:
        self._read_forms()
        for name in ("function.en.txt", "zh.function.txt"):
            self._read_function_words(name)
        for name in ("synonyms.en.txt", "zh.synonyms.txt"):
            self._read_synonyms(name)
        for name in ("contrasts.en.txt", "zh.contrasts.txt"):
            self._read_contrasts(name)
        for name in ("antonyms.en.txt", "zh.antonyms.txt", "wordnet.antonyms.txt"):
            self._read_antonyms(name)
        akin = self._read_akin("wordnet.synonyms.txt")
        explicit, implicit = self._read_negation()
        units, numbers = self._read_units(), self._read_numbers()
        known = {self._stem(word) for line in self._lines("known.en.txt") for word in line.split()}
        return Lexicon(
            canonical_of={**self._canonical, **{word: f"#{value:g}" for word, value in numbers.items()}},
            phrases=_by_beginning(self._phrases.values()),
            heads=frozenset(self._phrases),
            quiet=frozenset(self._quiet),
            negators=explicit,
            implicit_negators=implicit,
            opposites={word: frozenset(them) for word, them in self._opposites.items()},
            akin=akin,
            kinds={word: frozenset(them) for word, them in self._kinds.items()},
            reasons=tuple(self._reasons),
            numbers=numbers,
            units=units,
            known=frozenset(known | set(self._canonical) | set(self._kinds) | set(self._opposites)),
            forms=dict(self._forms),
            cjk_words=frozenset(self._cjk),
            max_cjk_chars=max((len(word) for word in self._cjk), default=1),
        )

    def _read_forms(self) -> None:
        for line in self._lines("forms.en.txt"):
            first, *others = line.split()
            for other in (first, *others):
                self._forms[other] = stem(first)

    def _read_function_words(self, name: str) -> None:
        for section, line in self._sections(name):
            match section:
                case "silent":
                    for word in line.split():
                        self._note_cjk(word)
                        self._canonical[self._stem(word)] = SILENT
                case "phrase":
                    for phrase in filter(None, (part.strip() for part in line.split(";"))):
                        self._register(phrase, SILENT)
                case "quiet":
                    for word in line.split():
                        self._note_cjk(word)
                        self._quiet.add(self._stem(word))
                case other:
                    raise ValueError(f"{name}: [{other}] is none of silent, phrase, quiet")

    def _read_synonyms(self, name: str) -> None:
        for line in self._lines(name):
            first, *others = (part.strip() for part in line.split(","))
            canonical = self._name(first)
            for other in others:
                self._register(other, canonical)

    def _read_contrasts(self, name: str) -> None:
        for line in self._lines(name):
            reason, _, members = line.partition(":")
            number = len(self._reasons)
            self._reasons.append(reason.strip())
            for member in members.split(","):
                first, *aliases = (part.strip() for part in member.split("/"))
                canonical = self._name(first)
                for alias in aliases:
                    self._register(alias, canonical)
                self._kinds.setdefault(canonical, set()).add(number)

    def _read_antonyms(self, name: str) -> None:
        for line in self._lines(name):
            left, _, right = line.partition("|")
            for one in left.split(","):
                for other in right.split(","):
                    a, b = self._name(one.strip()), self._name(other.strip())
                    if a != b:
                        self._opposites.setdefault(a, set()).add(b)
                        self._opposites.setdefault(b, set()).add(a)

    def _read_akin(self, name: str) -> dict[str, frozenset[str]]:
        akin: dict[str, set[str]] = {}
        for line in self._lines(name):
            a, b = (self._name(part.strip()) for part in line.split(","))
            akin.setdefault(a, set()).add(b)
            akin.setdefault(b, set()).add(a)
        return {word: frozenset(them) for word, them in akin.items()}

    def _read_negation(self) -> tuple[frozenset[str], frozenset[str]]:
        found: dict[str, set[str]] = {"explicit": set(), "implicit": set()}
        for section, line in self._sections("negation.txt"):
            for word in line.split():
                self._note_cjk(word)
                form = self._stem(word)
                found[section].add(form if section == "explicit" else self._canonical.get(form, form))
        return frozenset(found["explicit"]), frozenset(found["implicit"])

    def _read_units(self) -> dict[str, Unit]:
        units: dict[str, Unit] = {}
        for line in self._lines("units.txt"):
            dimension, _, members = line.partition(":")
            for member in members.split(","):
                names, _, factor = member.strip().rpartition("=")
                for name in names.split("/"):
                    units[" ".join(map(self._stem, name.split()))] = Unit(dimension, float(factor))
        return units

    def _read_numbers(self) -> dict[str, float]:
        return {word: float(value) for word, value in (line.split() for line in self._lines("numbers.txt"))}

    def _name(self, text: str) -> str:
        """Return the canonical word of a text, registering it as a phrase where it has several words."""
        forms = tuple(self._stem(word) for word in text.split())
        if len(forms) == 1:
            self._note_cjk(text)
            return self._canonical.get(forms[0]) or forms[0]
        known = next((p.canonical for p in self._phrases.get(forms[0], ()) if p.words == forms), None)
        if known is not None:
            return known
        canonical = "_".join(forms)
        self._phrases.setdefault(forms[0], []).append(Phrase(forms, canonical))
        return canonical

    def _register(self, text: str, canonical: str) -> None:
        """Have a word or phrase stand for `canonical`; what an earlier list said of it stays."""
        forms = tuple(self._stem(word) for word in text.split())
        if len(forms) == 1:
            self._note_cjk(text)
            self._canonical.setdefault(forms[0], canonical)
        elif not any(phrase.words == forms for phrase in self._phrases.get(forms[0], ())):
            self._phrases.setdefault(forms[0], []).append(Phrase(forms, canonical))

    def _note_cjk(self, text: str) -> None:
        if text and not text.isascii():
            self._cjk.add(text)

    def _stem(self, word: str) -> str:
        return self._forms.get(word) or stem(word)

    def _lines(self, name: str) -> Iterator[str]:
        text = (self._folder / name).read_text(encoding="utf-8")
        return (line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))

    def _sections(self, name: str) -> Iterable[tuple[str, str]]:
        section = ""
        for line in self._lines(name):
            if line.startswith("[") and line.endswith("]"):
                section = line[1:-1]
            else:
                yield section, line


def _by_beginning(lists: Iterable[list[Phrase]]) -> dict[tuple[str, ...], tuple[Phrase, ...]]:
    found: dict[tuple[str, ...], list[Phrase]] = {}
    for phrase in (phrase for phrases in lists for phrase in phrases):
        found.setdefault((phrase.words[0], phrase.words[1]), []).append(phrase)
    return {first_two: tuple(sorted(them, key=lambda p: -len(p.words))) for first_two, them in found.items()}
