"""A run's figures: percentiles, throughput, and how much of it met the objectives."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lab.bench.engine.answer import Answer

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Objective:
    """The most that a request may take, in milliseconds, to count for goodput; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @classmethod
    def read(cls, text: str) -> Objective:
        """Read `ttft:500,tpot:50,e2e:5000`, any of them; raises `ValueError` that says what is wrong."""
        limits: dict[str, float] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition(":")
            if name not in ("ttft", "tpot", "e2e"):
                raise ValueError(f"an objective is ttft:MS, tpot:MS or e2e:MS, not '{part}'")
            try:
                limits[f"{name}_ms"] = float(value)
            except ValueError:
                raise ValueError(f"'{value}' is no number of milliseconds in '{part}'") from None
        return cls(**limits)

    def is_met(self, answer: Answer) -> bool:
        """Tell whether a complete answer kept within every limit."""
        times = ((self.ttft_ms, answer.ttft_s), (self.tpot_ms, answer.tpot_s), (self.e2e_ms, answer.e2e_s))
        return answer.error is None and all(
            limit_ms is None or time_s is None or time_s * 1e3 <= limit_ms for limit_ms, time_s in times
        )


@dataclass(frozen=True, slots=True)
class Figures:
    """One run's figures; times in milliseconds by percentile, rates over the run's wall time.

    `num_incomplete` counts the requests that came to no proper end, `num_cached` those that a cache of answers gave,
    which measure no engine; `itl_ms` are the times between the events of one stream that held text.
    """

    wall_s: float
    num_requests: int
    num_incomplete: int
    num_cached: int
    errors: Sequence[str]
    requests_per_s: float
    output_tokens: int
    prompt_tokens: int
    output_tokens_per_s: float
    goodput_per_s: float
    ttft_ms: Mapping[str, float]
    tpot_ms: Mapping[str, float]
    itl_ms: Mapping[str, float]
    e2e_ms: Mapping[str, float]


def summarise(answers: Sequence[Answer], objective: Objective) -> Figures:
    """Sum up a run; times are those of complete answers, and so are the tokens."""
    complete = [answer for answer in answers if answer.error is None]
    wall_s = max(answer.ended_s for answer in answers) - min(answer.begun_s for answer in answers)
    output_tokens = sum(answer.output_tokens for answer in complete)
    errors = Counter(answer.error for answer in answers if answer.error is not None)
    return Figures(
        wall_s=wall_s,
        num_requests=len(answers),
        num_incomplete=len(answers) - len(complete),
        num_cached=sum(answer.is_from_cache for answer in answers),
        errors=[f"{count} x {error}" for error, count in errors.most_common(3)],
        requests_per_s=len(complete) / wall_s,
        output_tokens=output_tokens,
        prompt_tokens=sum(answer.prompt_tokens for answer in complete),
        output_tokens_per_s=output_tokens / wall_s,
        goodput_per_s=sum(map(objective.is_met, answers)) / wall_s,
        ttft_ms=percentiles_ms(answer.ttft_s for answer in complete),
        tpot_ms=percentiles_ms(answer.tpot_s for answer in complete),
        itl_ms=percentiles_ms(gap_s for answer in complete for gap_s in _gaps(answer.token_times)),
        e2e_ms=percentiles_ms(answer.e2e_s for answer in complete),
    )


def percentiles_ms(times_s: Iterable[float | None]) -> Mapping[str, float]:
    """Return `p50`, `p90`, `p95` and `p99` in milliseconds, by linear interpolation; empty where nothing was timed."""
    ordered = sorted(time_s for time_s in times_s if time_s is not None)
    return {f"p{percent}": percentile(ordered, percent) * 1e3 for percent in PERCENTILES} if ordered else {}


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of values in order, at least one."""
    place = (len(ordered) - 1) * percent / 100
    low, share = math.floor(place), place - math.floor(place)
    return ordered[low] * (1 - share) + ordered[min(low + 1, len(ordered) - 1)] * share


def _gaps(times: Sequence[float]) -> Iterable[float]:
    return (later - earlier for earlier, later in itertools.pairwise(times))
