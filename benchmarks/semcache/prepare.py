"""Make `benchmarks/data/semcache/` out of the published sets. `python -m benchmarks.semcache.prepare FOLDER`.

FOLDER holds them as their owners publish them: `fow-cache/`, `kmemo/`, `banking77/`, `clinc150/`. Pairs are split
before anything is made from them: pairs that share a text belong together, and the hash of the first of their texts
decides; six tenths are for making (`dev`), four tenths for one measurement (`held_out`).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import random
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "data" / "semcache"
DEV_TENTHS = 6
SEED = 77
BANKING_TRAIN_ROWS = 4_000

Row = dict[str, Any]


def main() -> None:
    """Write every file anew."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write("pairs.jsonl", split(unique(read_pairs(folder))))
    write("conversations.jsonl", read_conversations(folder))
    write("banking77.jsonl", read_banking(folder / "banking77"))
    write("clinc150.jsonl", read_clinc(folder / "clinc150" / "data_small.json"))
    for name, licence in (
        ("fow-cache", "LICENSE-DATA"),
        ("kmemo", "LICENSE"),
        ("banking77", "LICENSE"),
        ("clinc150", "LICENSE"),
    ):
        shutil.copyfile(folder / name / licence, OUT / "licences" / f"{name}.txt")


def read_pairs(folder: Path) -> Iterator[Row]:
    """Give all labelled pairs under one shape."""
    for line in (folder / "fow-cache" / "pairs.jsonl").read_text().splitlines():
        row = json.loads(line)
        yield pair("fow-cache", row["id"], row["category"], row["a"], row["b"], row["same_answer"])
    for name in ("near-miss", "validation", "response"):
        rows = json.loads((folder / "kmemo" / f"{name}-corpus.json").read_text())["pairs"]
        for number, row in enumerate(rows):
            yield pair("kmemo", f"{name}-{number:03d}", row["category"], row["a"], row["b"], row["shouldMatch"])


def pair(source: str, id: str, category: str, a: str, b: str, same_answer: bool) -> Row:
    """Write one pair."""
    return {"source": source, "id": id, "category": category, "a": a, "b": b, "same_answer": same_answer}


def plain(text: str) -> str:
    """Write a text without case and punctuation."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def unique(rows: Iterable[Row]) -> list[Row]:
    """Leave out pairs that came before, in whatever order their texts stand."""
    kept: dict[frozenset[str], Row] = {}
    for row in rows:
        kept.setdefault(frozenset((plain(row["a"]), plain(row["b"]))), row)
    return list(kept.values())


def split(rows: list[Row]) -> Iterator[Row]:
    """Give each pair its part; pairs that share a text are in one part."""
    leader: dict[str, str] = {}

    def find(text: str) -> str:
        while leader.setdefault(text, text) != text:
            text = leader[text]
        return text

    for row in rows:
        a, b = find(plain(row["a"])), find(plain(row["b"]))
        leader[max(a, b)] = min(a, b)
    for row in rows:
        digest = hashlib.sha256(find(plain(row["a"])).encode()).hexdigest()
        yield {**row, "part": "dev" if int(digest[:8], 16) % 10 < DEV_TENTHS else "held_out"}


def read_conversations(folder: Path) -> Iterator[Row]:
    """Give the pairs of conversations, without the authors' notes."""
    for path in sorted((folder / "fow-cache" / "conv-parts").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            yield {name: row[name] for name in ("id", "subtype", "same_answer", "a", "b")}


def read_banking(folder: Path) -> Iterator[Row]:
    """Give the test queries and a fixed sample of the training ones."""
    drawn = random.Random(SEED).sample(read_csv(folder / "train.csv"), BANKING_TRAIN_ROWS)
    for text, intent in [*read_csv(folder / "test.csv"), *drawn]:
        yield {"text": text, "intent": intent}


def read_csv(path: Path) -> list[tuple[str, str]]:
    """Read (text, intent) without the heading."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(text, intent) for text, intent in list(csv.reader(file))[1:]]


def read_clinc(path: Path) -> Iterator[Row]:
    """Give the test and validation queries, and the test queries out of scope (each an intent of its own)."""
    kept = json.loads(path.read_text())
    for part in ("test", "val", "oos_test"):
        for text, intent in kept[part]:
            yield {"text": text, "intent": intent}


def write(name: str, rows: Iterable[Row]) -> None:
    """Write one file of JSON lines."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (OUT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
