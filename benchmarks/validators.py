"""Measure what the checks cost and what they find: `python -m benchmarks.validators [--json OUT] [--wild FILE]`.

Cost is CPU time of one run over 2,000 characters of questions, after a first one that is told apart. Quality is
measured on the labelled sets in `data/validators`, and flags on benign requests on the questions in `data/semcache`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from orchestration.core import Kind, Request
from validators.check import Check, Context, Outcome, Stage, Verdict
from validators.registry import OWN
from validators.shadow import normalise

DATA = Path(__file__).parent / "data"
TEXT_CHARS = 2_000
NUM_TEXTS = 300
HELD_OUT_FROM = 100
LATIN = ("en", "de", "fr", "es", "it", "pt", "nl")

OPTIONS: dict[str, dict[str, Any]] = {
    "banned_words": {"words": ["forbidden", "bad idea"]},
    "competitors": {"names": ["Acme", "Globex Mobile"]},
    "distribution": {"rules": [{"when": "weather", "answers": ["rainy", "sunny"]}]},
    "grounding": {},
    "json_schema": {"schema": {"type": "object", "required": ["a"]}},
    "language": {"allow": ["en"]},
    "length": {"max_chars": 100_000},
    "pii": {},
    "prompt_injection": {},
    "regex": {"patterns": [r"\bkey-\d{4,9}\b"]},
    "secrets": {},
    "sql": {},
    "topics": {"topics": {"politics": ["election", "ballot box"], "crime": ["steal", "rob"]}},
    "urls": {"deny": ["evil.com"]},
}


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU microseconds of one run over 2,000 characters."""

    check: str
    first_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a check tells bad from good; shares are None where nothing of the sort was there to be counted."""

    check: str
    num_bad: int
    num_good: int
    precision: float | None
    recall: float | None
    recall_at_1_percent: float | None
    flags_per_1000: float | None


def main() -> None:
    """Measure, print two tables, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows there, too")
    parser.add_argument(
        "--wild", type=Path, help="a JSON list of jailbreaks, of which all but the first 100 are held out"
    )
    options = parser.parse_args()
    questions = list(read_questions())
    costs = [cost_of(name, questions) for name in sorted(OPTIONS)]
    qualities = [quality_of(name, questions) for name in ("pii", "prompt_injection", "urls", "competitors", "sql")]
    qualities += [grounding_quality(), *language_quality(questions)]
    if options.wild:
        qualities.append(wild_quality(json.loads(options.wild.read_text()), questions))
    show(costs, qualities)
    if options.json:
        rows = {"costs": [asdict(row) for row in costs], "qualities": [asdict(row) for row in qualities]}
        options.json.write_text(json.dumps(rows, indent=2))


def cost_of(name: str, questions: Sequence[str]) -> Cost:
    """Time one check over texts of the questions put together."""
    whole = " ".join(questions)
    texts = [whole[start : start + TEXT_CHARS] for start in range(0, NUM_TEXTS * TEXT_CHARS, TEXT_CHARS)]
    check = OWN[name](OPTIONS[name])
    times = [_time_us(check, text) for text in texts]
    ordered = sorted(times[1:])
    return Cost(name, times[0], ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)])


def quality_of(name: str, questions: Sequence[str]) -> Quality:
    """Measure a check on its labelled set and on the benign questions."""
    check = OWN[name](OPTIONS[name])
    rows = list(_rows(f"{name}.jsonl"))
    benign = [] if name == "sql" else questions
    return _quality(name, rows, benign, lambda row: _judge(check, row["text"]))


def grounding_quality() -> Quality:
    """Measure grounding: each row brings its own context."""
    check = OWN["grounding"]({"threshold": 1.0})

    def judge(row: dict[str, Any]) -> Verdict:
        messages = [{"role": "tool", "content": row["context"]}, {"role": "user", "content": "?"}]
        return _judge(check, row["text"], messages=messages)

    found = _quality("grounding", list(_rows("grounding.jsonl")), [], judge)
    return replace(found, recall_at_1_percent=None)  # a row is one sentence, so its score is 0 or 1


def language_quality(questions: Sequence[str]) -> Iterator[Quality]:
    """Measure how a check that allows English refuses other languages, by script, and English questions."""
    check = OWN["language"](OPTIONS["language"])
    english = [{"text": text, "bad": False} for text in questions]
    for name, is_latin in (("language, Latin script", True), ("language, other scripts", False)):
        rows = [{**row, "bad": True} for row in _rows("language.jsonl") if (row["language"] in LATIN) == is_latin]
        yield _quality(name, [*rows, *english[:1000]], questions, lambda row: _judge(check, row["text"]))


def wild_quality(prompts: Sequence[str], questions: Sequence[str]) -> Quality:
    """Measure prompt injection on jailbreaks that it was not written for."""
    check = OWN["prompt_injection"]({})
    rows = [{"text": text, "bad": True} for text in prompts[HELD_OUT_FROM:]]
    good = [{"text": text, "bad": False} for text in questions]
    return _quality("prompt_injection, held-out jailbreaks", [*rows, *good], [], lambda row: _judge(check, row["text"]))


def show(costs: Sequence[Cost], qualities: Sequence[Quality]) -> None:
    """Print the tables."""
    console = Console()
    table = Table(title="CPU time for 2,000 characters, us")
    for heading in ("check", "first", "p50", "p99"):
        table.add_column(heading, justify="left" if heading == "check" else "right")
    for cost in costs:
        table.add_row(cost.check, f"{cost.first_us:,.0f}", f"{cost.p50_us:,.1f}", f"{cost.p99_us:,.1f}")
    console.print(table)
    table = Table(title="Quality on labelled texts")
    for heading in ("check", "bad", "good", "precision", "recall", "recall at 1 % FP", "flags per 1,000 benign"):
        table.add_column(heading, justify="left" if heading == "check" else "right")
    for row in qualities:
        shares = (row.precision, row.recall, row.recall_at_1_percent)
        flags = "-" if row.flags_per_1000 is None else f"{row.flags_per_1000:.2f}"
        table.add_row(row.check, f"{row.num_bad:,}", f"{row.num_good:,}", *map(_percent, shares), flags)
    console.print(table)


def read_questions() -> Iterator[str]:
    """Give the benign questions."""
    for name in ("banking77", "clinc150"):
        for line in (DATA / "semcache" / f"{name}.jsonl").read_text().splitlines():
            yield json.loads(line)["text"]


def _quality(
    name: str, rows: Sequence[dict[str, Any]], benign: Sequence[str], judge: Callable[[dict[str, Any]], Verdict]
) -> Quality:
    bad = [judge(row) for row in rows if row["bad"]]
    good = [judge(row) for row in rows if not row["bad"]]
    flagged = [judge({"text": text}) for text in benign]
    hits, wrong = sum(map(_is_found, bad)), sum(map(_is_found, good))
    return Quality(
        check=name,
        num_bad=len(bad),
        num_good=len(good),
        precision=hits / (hits + wrong) if hits + wrong else None,
        recall=hits / len(bad) if bad else None,
        recall_at_1_percent=_recall_at(bad, [*good, *flagged], share=0.01),
        flags_per_1000=1000 * sum(map(_is_found, flagged)) / len(flagged) if flagged else None,
    )


def _recall_at(bad: Sequence[Verdict], good: Sequence[Verdict], *, share: float) -> float | None:
    """Return the recall at the lowest bar that at most `share` of the good texts reach; None without scores."""
    if not bad or not good or any(verdict.score is None for verdict in [*bad, *good]):
        return None
    scores = sorted((verdict.score or 0.0 for verdict in good), reverse=True)
    bar = scores[int(len(scores) * share)]
    return sum((verdict.score or 0.0) > bar for verdict in bad) / len(bad)


def _is_found(verdict: Verdict) -> bool:
    return verdict.outcome in (Outcome.REWRITE, Outcome.BLOCK)


def _judge(check: Check, text: str, *, messages: Sequence[dict[str, Any]] = ()) -> Verdict:
    request = Request(kind=Kind.CHAT, dialect="openai.chat", fields={"model": "m", "messages": list(messages)})
    context = Context(Stage.OUTPUT, "choices[0].text", request=request)
    return asyncio.run(check.check(normalise(text).text, context))


def _time_us(check: Check, text: str) -> float:
    request = Request(kind=Kind.CHAT, dialect="openai.chat", fields={"model": "m", "messages": _context(text)})
    running = check.check(text, Context(Stage.OUTPUT, "choices[0].text", request=request))
    begun = time.thread_time_ns()
    try:
        running.send(None)  # a coroutine that never waits
    except StopIteration:
        return (time.thread_time_ns() - begun) / 1000.0
    raise AssertionError("a check of this process never waits")


def _context(text: str) -> list[dict[str, Any]]:
    return [{"role": "tool", "content": text}, {"role": "user", "content": "what is the weather"}]


def _rows(name: str) -> Iterator[dict[str, Any]]:
    for line in (DATA / "validators" / name).read_text().splitlines():
        yield json.loads(line)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
