"""Choose the bars between small, medium and large, and report how often they are right.

`python -m benchmarks.complexity`. The set is small: 120 prompts, 40 a size, written and labelled by hand for this
purpose. Small: a fact, a word, a one-step change. Medium: a paragraph, a short function, a comparison. Large: proofs,
designs, many constraints. Every other prompt chooses the bars, the others report. The features were written before
the prompts, but for one, `proofs`, which mistakes in the choosing half asked for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestration.core import Kind, Request
from orchestration.core.complexity import LARGE_FROM, MEDIUM_FROM, ModelChoice, Size, features_of, score_of

PROMPTS = Path(__file__).with_name("prompts.jsonl")
STEP = 0.1


@dataclass(frozen=True, slots=True)
class Labelled:
    """One prompt with the size that a person gave it; `part` says what it is for: to choose, or to report."""

    part: str
    size: Size
    request: Request


def read_prompts(path: Path = PROMPTS) -> list[Labelled]:
    """Read the labelled set."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Labelled(row["part"], Size(row["size"]), _request(row["text"])) for row in rows]


def confusion(prompts: Sequence[Labelled], choice: ModelChoice) -> Counter[tuple[Size, Size]]:
    """Count prompts by (label, decision)."""
    return Counter((one.size, choice.decide(features_of(one.request))[0]) for one in prompts)


def accuracy(counts: Counter[tuple[Size, Size]]) -> float:
    """Return the share of right decisions."""
    return sum(count for (label, decided), count in counts.items() if label is decided) / counts.total()


def choose_bars(prompts: Sequence[Labelled]) -> tuple[float, float]:
    """Return the middle one of the pairs of bars that are right most often."""
    scores = [(one.size, score_of(features_of(one.request))) for one in prompts]
    grid = [round(number * STEP, 2) for number in range(1, 100)]
    best: list[tuple[float, float]] = []
    most = -1
    for medium_from, large_from in itertools.combinations(grid, 2):
        right = sum(_size(score, medium_from, large_from) is size for size, score in scores)
        if right > most:
            best, most = [], right
        if right == most:
            best.append((medium_from, large_from))
    return best[len(best) // 2]


def main() -> None:
    """Print the bars that the first half chooses, and what the bars in use do on both halves."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    prompts = read_prompts()
    chosen = choose_bars([one for one in prompts if one.part == "choose"])
    print(f"bars chosen: medium from {chosen[0]:g}, large from {chosen[1]:g}; in use: {MEDIUM_FROM:g}, {LARGE_FROM:g}")
    for part in ("choose", "report"):
        counts = confusion([one for one in prompts if one.part == part], ModelChoice("s", "m", "l"))
        print(f"{part}: {accuracy(counts):.1%} of {counts.total()} right")
        for label in Size:
            print(f"  {label.value:>6} -> " + ", ".join(f"{size.value} {counts[label, size]}" for size in Size))
    begun = time.perf_counter()
    for one in prompts:
        features_of(one.request)
    print(f"{(time.perf_counter() - begun) / len(prompts) * 1e6:.0f} us a prompt")


def _size(score: float, medium_from: float, large_from: float) -> Size:
    if score >= large_from:
        return Size.LARGE
    return Size.MEDIUM if score >= medium_from else Size.SMALL


def _request(text: str) -> Request:
    return Request(
        kind=Kind.CHAT,
        dialect="openai.chat",
        fields={"model": "auto", "messages": [{"role": "user", "content": text}]},
    )


if __name__ == "__main__":
    main()
