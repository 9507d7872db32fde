"""The numbers that the parts report, as metrics: `lamina_<part>_<name>`, and the engine's under vLLM's names too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.exchange import Exchange
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.parts import StatsSource

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9_]")
# Dashboards made for vLLM read these.
_VLLM_GAUGES = {
    "running": ("vllm:num_requests_running", "Requests in the running batch."),
    "waiting": ("vllm:num_requests_waiting", "Requests waiting to be admitted."),
    "kv_usage": ("vllm:kv_cache_usage_perc", "Share of the KV pages that live requests hold, from 0 to 1."),
}
_VLLM_COUNTERS = {
    "prefix_query_tokens": ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hit_tokens": ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "prompt_tokens": ("vllm:prompt_tokens", "Prompt tokens taken."),
    "generated_tokens": ("vllm:generation_tokens", "Tokens generated."),
    "preemptions": ("vllm:num_preemptions", "Requests that lost their pages and began again."),
    "finished": ("vllm:request_success", "Requests finished."),
}


@dataclass(frozen=True, slots=True, eq=False)
class PartNumbers(Collector):
    """One scrape's numbers by part; None stands for a part that did not answer."""

    by_part: Mapping[str, Mapping[str, float] | None]

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
        yield from _vllm_metrics(self.by_part.get("engine") or {})


class MetricsPage:
    """`GET /metrics`: the gateway's own numbers and those of every part that answers within `timeout_s`."""

    def __init__(self, metrics: Metrics, sources: Mapping[str, StatsSource], *, timeout_s: float = 1.0) -> None:
        self._metrics = metrics
        self._sources = sources
        self._timeout_s = timeout_s

    async def __call__(self, exchange: Exchange) -> None:
        """Answer a scrape, whichever parts are down."""
        numbers = await asyncio.gather(*map(self._ask, self._sources.values()))
        parts = PartNumbers(dict(zip(self._sources, numbers, strict=True)))
        body = await asyncio.to_thread(self._metrics.render, [parts])
        await exchange.reply(200, body, content_type=CONTENT_TYPE)

    async def _ask(self, source: StatsSource) -> Mapping[str, float] | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await source()
        except Exception:  # a part that is down shows as lamina_part_up 0, and never takes the others along
            return None


def _vllm_metrics(numbers: Mapping[str, float]) -> Iterator[Metric]:
    for name, (metric, meaning) in _VLLM_GAUGES.items():
        if name in numbers:
            yield GaugeMetricFamily(metric, meaning, value=numbers[name])
    for name, (metric, meaning) in _VLLM_COUNTERS.items():
        if name in numbers:
            yield CounterMetricFamily(metric, meaning, value=numbers[name])


def _metric_name(text: str) -> str:
    return _NOT_IN_A_NAME.sub("_", text.lower())
