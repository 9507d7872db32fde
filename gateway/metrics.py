"""The gateway's own numbers for `/metrics`, each label's values from a closed list.

With several workers prometheus_client keeps its numbers in files of one folder: the environment variable
`PROMETHEUS_MULTIPROC_DIR` must name it before prometheus_client is imported, so whoever starts a worker sets it,
and calls `prometheus_client.multiprocess.mark_process_dead(pid)` when one has died.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.values import ValueClass

from gateway.cache_metrics import CacheMetrics, PriceOf
from gateway.check_metrics import CheckMetrics
from gateway.exchange import Exchange
from gateway.tallies import Tallies
from logging_layer.stages import stage_times

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_DURATIONS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_STAGES_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1, 10)
_STAGES_EVERY = 8
"""Of how many calls one has its stages counted: each stage is an observation, and all of them would be 30 us."""
_OVERHEADS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


class Metrics:
    """Count calls as they end. A model that is not in `models` is counted as `other`."""

    def __init__(self, models: Iterable[str], *, folder: Path | None = None) -> None:
        if folder is not None and not getattr(ValueClass, "_multiprocess", False):
            raise ValueError(f"set PROMETHEUS_MULTIPROC_DIR={folder} before the worker imports prometheus_client")
        self._models = set(models)
        self._folder = folder
        self._registry = CollectorRegistry()
        registry = self._registry
        requests = Counter(
            "lamina_requests",
            "Requests by how they ended: the status (499: the client left; of a broken stream the error's).",
            ["endpoint", "model", "status", "cache"],
            registry=registry,
        )
        durations = Histogram(
            "lamina_request_duration_seconds",
            "From the request's head to the reply's end.",
            ["endpoint", "cache"],
            buckets=_DURATIONS_S,
            registry=registry,
        )
        overheads = Histogram(
            "lamina_overhead_seconds",
            "Time to the first event less the time that backends took.",
            ["endpoint", "cache"],
            buckets=_OVERHEADS_S,
            registry=registry,
        )
        first_events = Histogram(
            "lamina_time_to_first_event_seconds",
            "From the request's head to the answer's first event.",
            ["endpoint", "cache"],
            buckets=_DURATIONS_S,
            registry=registry,
        )
        running = Gauge(
            "lamina_requests_in_flight",
            "Calls that are being answered now.",
            ["endpoint"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        tokens = Counter(
            "lamina_tokens", "Tokens of answers, as their backends counted.", ["model", "type"], registry=registry
        )

        self._tallies = tallies = Tallies()
        self._requests = tallies.counter(requests)
        self._durations = tallies.histogram(durations)
        self._overheads = tallies.histogram(overheads)
        self._first_events = tallies.histogram(first_events)
        self._running = tallies.gauge(running)
        self._tokens = tallies.counter(tokens)
        self._stages = tallies.histogram(_stages(registry))
        self._num_calls = 0
        self.cache = CacheMetrics(registry, tallies)
        self._checks = CheckMetrics(registry, tallies)

    def know(self, models: Iterable[str], *, price_of: PriceOf | None = None) -> None:
        """Count these models by name, too, from now on, and what caches save by these prices."""
        self._models.update(models)
        if price_of is not None:
            self.cache.price_of = price_of

    def in_flight(self, endpoint: str) -> AbstractContextManager[None]:
        """Count a call as running meanwhile."""
        return self._running(endpoint)

    def observe(self, exchange: Exchange) -> None:
        """Count a request that has ended; for use in one event loop."""
        self._tallies.touched()
        endpoint, cache = exchange.label, exchange.notes.cache.status.value
        model = exchange.model if exchange.model in self._models else "other" if exchange.model else ""
        self._requests(endpoint, model, str(exchange.status), cache).waiting += 1
        self._durations(endpoint, cache).observe(time.monotonic() - exchange.started)
        self.cache.observe(exchange.notes, exchange.usage, model=exchange.model)
        is_timed = self._num_calls % _STAGES_EVERY == 0
        self._checks.observe(exchange.notes, is_timed=is_timed)
        if exchange.first_event_at is None:
            return
        self._overheads(endpoint, cache).observe(exchange.overhead_s())
        self._first_events(endpoint, cache).observe(exchange.first_event_at - exchange.started)
        self._num_calls += 1
        if is_timed:
            for stage, taken_ms in stage_times(exchange.notes).items():
                self._stages(stage).observe(taken_ms / 1000.0)
        usage = exchange.usage
        if usage is not None:
            self._tokens(model, "prompt").waiting += usage.prompt_tokens
            self._tokens(model, "completion").waiting += usage.completion_tokens
            self._tokens(model, "cached_prompt").waiting += usage.cached_tokens

    def tell(self) -> None:
        """Let `render` know what was counted up to now, which it else hears of within a quarter of a second."""
        self._tallies.tell()

    def render(self, others: Iterable[Collector]) -> bytes:
        """Write everything in Prometheus' text format; reads files where there are several workers."""
        own = self._registry
        if self._folder is not None:
            own = CollectorRegistry()
            MultiProcessCollector(own, path=str(self._folder))  # type: ignore[no-untyped-call]  # half typed library
        parts = CollectorRegistry()
        for collector in others:
            parts.register(collector)
        return generate_latest(own) + generate_latest(parts)


def _stages(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "lamina_stage_seconds",
        "What a layer took before it asked the next one, of every eighth call; the router waits for the backend.",
        ["stage"],
        buckets=_STAGES_S,
        registry=registry,
    )
