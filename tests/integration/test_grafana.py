"""The dashboard's file names only metrics that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import yaml
from prometheus_client import CollectorRegistry

from gateway.cache_metrics import CacheMetrics
from gateway.check_metrics import CheckMetrics
from logging_layer.shipper import Shipper
from logging_layer.shipper_parts import chores_of, feeds_of, parser
from tests.integration.conftest import Served

DEPLOY = Path(__file__).parents[2] / "deploy"
ROWS = ["Gateway", "Cache", "Engine", "Validators", "Log"]
_NAME = re.compile(r"(?:lamina_|vllm:)[a-z0-9_]+")
_PATTERN = re.compile(r'__name__=~"([^"]+)"')


def expressions() -> list[str]:
    board = json.loads((DEPLOY / "grafana" / "lamina.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def of_registry(registry: CollectorRegistry) -> set[str]:
    """Name the samples that a registry's families have once something was counted."""
    endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}
    return {family.name + ending for family in registry.collect() for ending in endings[family.type]}


def of_shipper(folder: Path) -> set[str]:
    """Name what a shipper with an MLflow tells."""
    flags = ["--spool", str(folder), "--database", f"sqlite:///{folder}/l.db", "--retention-days", "30"]
    options = parser().parse_args([*flags, "--mlflow", "http://127.0.0.1:1", "--workers", str(folder)])
    feeds = feeds_of(options)
    shipper = Shipper(folder, feeds, chores=chores_of(options, truth=feeds[0]))
    return {f"lamina_log_shipper_{name}" for name in shipper.stats()}


def test_every_metric_that_the_dashboard_names_exists(whole: Served, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "Say a word."}]
    body = {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 2}
    httpx.post(f"{whole.url}/v1/chat/completions", json=body, timeout=120).raise_for_status()
    page = httpx.get(f"{whole.url}/metrics", timeout=30).text
    registry = CollectorRegistry()
    CacheMetrics(registry)
    CheckMetrics(registry)
    known = {re.split(r"[{ ]", line)[0] for line in page.splitlines() if line and not line.startswith("#")}
    known |= of_registry(registry) | of_shipper(tmp_path)

    patterns = {pattern for each in expressions() for pattern in _PATTERN.findall(each)}
    named = {name for each in expressions() for name in _NAME.findall(_PATTERN.sub("", each))}

    assert named - known == set()
    assert [one for one in patterns if not any(re.fullmatch(one, name) for name in known)] == []
    assert len(named) > 40


def test_the_dashboard_has_a_row_for_each_part_and_no_two_panels_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana" / "lamina.json").read_text())["panels"]
    places = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert [panel["title"] for panel in panels if panel["type"] == "row"] == ROWS
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_scrapes_sample_asks_for_the_page_that_there_is() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]

    assert (job["metrics_path"], job["static_configs"][0]["targets"]) == ("/metrics", ["127.0.0.1:4000"])
