"""The numbers that the parts report, as metrics: `lamina_<part>_<name>`, and the engine's under vLLM's names too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backends.local.link import HistogramCounts, Measures
from gateway.engine_numbers import engine_metrics, histogram_metric
from gateway.exchange import Exchange
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.parts import EngineSource, HistogramSource, StatsSource

Given = TypeVar("Given")

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True, slots=True, eq=False)
class PartNumbers(Collector):
    """One scrape's numbers by part; None stands for a part that did not answer."""

    by_part: Mapping[str, Mapping[str, float] | None]
    engine: Measures | None = None
    histograms: Mapping[str, Mapping[str, HistogramCounts] | None] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Give them as metrics."""
        up = GaugeMetricFamily("lamina_part_up", "Whether a part gave its numbers.", labels=["part"])
        for part, numbers in self.by_part.items():
            up.add_metric([part], 0.0 if numbers is None else 1.0)
        yield up
        for part, numbers in self.by_part.items():
            for name, value in (numbers or {}).items():
                metric = f"lamina_{_metric_name(part)}_{_metric_name(name)}"
                yield GaugeMetricFamily(metric, f"{name} of the {part}, as it reports it.", value=value)
        for part, histograms in self.histograms.items():
            for name, counts in (histograms or {}).items():
                metric = f"lamina_{_metric_name(part)}_{_metric_name(name)}"
                yield histogram_metric(metric, f"{name} of the {part}, as it reports it.", counts)
        if self.engine is not None:
            yield from engine_metrics(self.engine)


class MetricsPage:
    """`GET /metrics`: the gateway's own numbers and those of every part that answers within `timeout_s`."""

    def __init__(
        self,
        metrics: Metrics,
        sources: Mapping[str, StatsSource],
        *,
        engine: EngineSource | None = None,
        histograms: Mapping[str, HistogramSource] | None = None,
        timeout_s: float = 1.0,
    ) -> None:
        self._metrics = metrics
        self._sources = {name: source for name, source in sources.items() if engine is None or name != "engine"}
        self._engine = engine
        self._histograms = histograms or {}
        self._timeout_s = timeout_s

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a scrape, whichever parts are down."""
        self._metrics.tell()
        body = await asyncio.to_thread(self._metrics.render, [await self.numbers()])
        await exchange.reply(200, body, content_type=CONTENT_TYPE)

    async def numbers(self) -> PartNumbers:
        """Ask all parts at once.

        The one engine is asked anew by whichever worker is scraped, so that it counts once, however many there are.
        """
        numbers, engine, histograms = await asyncio.gather(
            asyncio.gather(*map(self._ask, self._sources.values())),
            self._ask_engine(),
            asyncio.gather(*map(self._ask, self._histograms.values())),
        )
        by_part = dict(zip(self._sources, numbers, strict=True))
        if self._engine is not None:
            by_part["engine"] = None if engine is None else engine.numbers
        return PartNumbers(by_part, engine, dict(zip(self._histograms, histograms, strict=True)))

    async def _ask_engine(self) -> Measures | None:
        return None if self._engine is None else await self._ask(self._engine)

    async def _ask(self, source: Callable[[], Awaitable[Given]]) -> Given | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await source()
        except Exception:  # a part that is down shows as lamina_part_up 0, and never takes the others along
            return None


def _metric_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text.lower())
