"""The engine's numbers under vLLM's names and labels, so that dashboards and scrapers made for vLLM read ours as is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

from backends.local.link import HistogramCounts, Measures

PREFIX = "vllm:"
OUR_PREFIX = "lamina_engine_"
_LABELS = ("model_name", "engine")
_GAUGES = {
    "running": ("num_requests_running", "Requests in the running batch."),
    "waiting": ("num_requests_waiting", "Requests waiting to be admitted."),
    "kv_usage": ("kv_cache_usage_perc", "Share of the KV pages that live requests hold, from 0 to 1."),
}
_COUNTERS = {
    "prefix_query_tokens": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    "prefix_hit_tokens": ("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens taken."),
    "generated_tokens": ("generation_tokens", "Tokens generated."),
    "preemptions": ("num_preemptions", "Requests that lost their pages and began again."),
}
_FINISHED = "finished_"
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival at the engine to its first token.",
    "inter_token_latency_seconds": "Between two tokens of a request.",
    "request_time_per_output_token_seconds": "A request's mean time per token after the first.",
    "e2e_request_latency_seconds": "From a request's arrival at the engine to its end.",
    "request_queue_time_seconds": "From a request's arrival to its first step.",
    "request_prefill_time_seconds": "From a request's first step to its first token.",
    "request_decode_time_seconds": "From a request's first token to its last.",
    "request_inference_time_seconds": "From a request's first step to its last token.",
    "request_prompt_tokens": "Tokens of a request's prompt.",
    "request_generation_tokens": "Tokens of a request's answer.",
    "iteration_tokens_total": "Tokens that a step computes.",
}
_OURS = {"step_seconds": "How long a step's computation takes."}


def engine_metrics(measures: Measures) -> Iterator[Metric]:
    """Give what the engine measured; a number that it does not tell is left out."""
    labels = [measures.model, "0"]
    for name, (metric, meaning) in _GAUGES.items():
        if name in measures.numbers:
            gauge = GaugeMetricFamily(PREFIX + metric, meaning, labels=_LABELS)
            gauge.add_metric(labels, measures.numbers[name])
            yield gauge
    for name, (metric, meaning) in _COUNTERS.items():
        if name in measures.numbers:
            counter = CounterMetricFamily(PREFIX + metric, meaning, labels=_LABELS)
            counter.add_metric(labels, measures.numbers[name])
            yield counter
    yield _ends(measures, labels)
    for prefix, meanings in ((PREFIX, _HISTOGRAMS), (OUR_PREFIX, _OURS)):
        for name, meaning in meanings.items():
            if name in measures.histograms:
                counts = measures.histograms[name]
                yield histogram_metric(prefix + name, meaning, counts, names=_LABELS, labels=labels)


def histogram_metric(
    name: str, meaning: str, counts: HistogramCounts, *, names: Sequence[str] = (), labels: Sequence[str] = ()
) -> Metric:
    """Write a histogram that another process counted; `labels` are the values of `names`."""
    bounds = [*map(floatToGoString, counts.bounds), "+Inf"]
    family = HistogramMetricFamily(name, meaning, labels=names)
    family.add_metric(labels, list(zip(bounds, map(float, counts.counts), strict=True)), counts.total)
    return family


def _ends(measures: Measures, labels: list[str]) -> Metric:
    ends = CounterMetricFamily(PREFIX + "request_success", "Requests ended.", labels=[*_LABELS, "finished_reason"])
    for name, value in measures.numbers.items():
        if name.startswith(_FINISHED):
            ends.add_metric([*labels, name.removeprefix(_FINISHED)], value)
    return ends
