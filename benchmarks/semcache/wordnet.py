"""Take synonyms and antonyms of common words out of WordNet 3.0.

`python -m benchmarks.semcache.wordnet FOLDER VOCABULARY`. FOLDER holds `data.noun`, `index.noun` and so on, as
Princeton publishes them (Debian: package wordnet-base, under /usr/share/wordnet). VOCABULARY is the `tokenizer.json`
of a BERT model: its whole words below number 14,000 count as common. Two words are synonyms where one of the first two
senses of each is the same. Writes two lists for the guard.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from cache.guard import lexicon

WORDS = Path(lexicon.__file__).with_name("words")
PARTS = ("noun", "verb", "adj", "adv")
COMMON_BELOW = 14_000
NUM_SENSES = 2
LEFT_OUT = frozenset({"all", "have", "make", "some", "always", "crap", "shit", "bloody"})
HEADING = "# From WordNet 3.0, (c) 2006 Princeton University; its licence is in wordnet.licence.txt. {}\n"

Pairs = set[tuple[str, str]]


def main() -> None:
    """Write both lists anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("vocabulary", type=Path)
    options = parser.parse_args()
    numbers = json.loads(options.vocabulary.read_text())["model"]["vocab"]
    common = {word for word, number in numbers.items() if word.isalpha() and len(word) > 2 and number < COMMON_BELOW}
    common -= LEFT_OUT
    synonyms: Pairs = set()
    antonyms: Pairs = set()
    for part in PARTS:
        senses = dict(read_senses(options.folder / f"data.{part}"))
        synonyms |= synonyms_of(options.folder / f"index.{part}", senses, common)
        antonyms |= antonyms_of(options.folder / f"data.{part}", senses, common)
    write("wordnet.synonyms.txt", "Words that may mean the same.", ", ", synonyms - antonyms)
    write("wordnet.antonyms.txt", "Opposites.", " | ", antonyms)


def read_senses(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Give each sense's offset and words."""
    for fields in entries(path):
        yield fields[0], words_of(fields)


def words_of(fields: list[str]) -> list[str]:
    """Return the words of a sense: their number is hexadecimal, each stands beside its own number."""
    return [word.lower().partition("(")[0] for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]


def synonyms_of(path: Path, senses: dict[str, list[str]], common: set[str]) -> Pairs:
    """Return pairs of common words that share one of their first senses."""
    first = {}
    for fields in entries(path):
        offsets = fields[6 + int(fields[3]) :]
        first[fields[0]] = offsets[:NUM_SENSES]
    return {
        (min(word, other), max(word, other))
        for word in common & first.keys()
        for offset in first[word]
        for other in senses[offset]
        if other != word and other in common and offset in first.get(other, ())
    }


def antonyms_of(path: Path, senses: dict[str, list[str]], common: set[str]) -> Pairs:
    """Return pairs of common words that a pointer `!` joins."""
    found = set()
    for fields in entries(path):
        words = words_of(fields)
        pointers = fields[5 + 2 * len(words) :]
        for place in range(int(fields[4 + 2 * len(words)])):
            symbol, offset, _, which = pointers[4 * place : 4 * place + 4]
            if symbol == "!" and which != "0000":
                one, other = words[int(which[:2], 16) - 1], senses[offset][int(which[2:], 16) - 1]
                found.add((min(one, other), max(one, other)))
    return {(one, other) for one, other in found if one in common and other in common}


def entries(path: Path) -> Iterator[list[str]]:
    """Give the fields of each line but the licence's, which are indented."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            yield line.partition(" | ")[0].split()


def write(name: str, what: str, between: str, pairs: Pairs) -> None:
    """Write one list."""
    lines = "".join(f"{one}{between}{other}\n" for one, other in sorted(pairs))
    (WORDS / name).write_text(HEADING.format(what) + lines, encoding="utf-8")


if __name__ == "__main__":
    main()
