"""Which settings may change while serving."""

from __future__ import annotations

import pytest

from gateway.refusals import SettingsError
from gateway.settings import parse_settings
from gateway.supervisor.changes import check_change

ECHO = "models: [{id: a, backends: [{type: echo}]}]\ncache: {semantic: {enabled: false}}\n"


def change(old: str, new: str) -> None:
    check_change(parse_settings(old, environment={}), parse_settings(new, environment={}))


@pytest.mark.parametrize(
    "new",
    [
        ECHO.replace("id: a", "id: b"),
        ECHO + "layers: [call_log, router]",
        ECHO + "validators: {input: []}",
        ECHO + "keys: {master: k}",
        ECHO + "log: {content: none}",
        ECHO + "routing: {health_interval_s: 3}",
        "models: [{id: a, strategy: latency, backends: [{type: echo}, {type: echo}]}]\ncache: {exact: {ttl_s: 5}}",
    ],
)
def test_what_workers_alone_use_may_change(new: str) -> None:
    change("", new) if "cache: {exact" in new else change(ECHO, new)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("server: {port: 4001}", "server.port"),
        ("server: {max_body_mb: 1}", "server.max_body_mb"),
        ("engine: {dtype: float32}", "engine.dtype"),
        ("database: {url: 'sqlite:///x'}", "database.url"),
        ("redis: {url: 'redis://:hunter2@h'}", "redis.url"),
        ("mlflow: {serve: true}", "mlflow.serve"),
        ("log: {sample: 0.5}", "log.sample"),
        ("log: {retention_days: 3}", "log.retention_days"),
        ("log: {otlp: [{url: 'http://c/v1/traces', headers: {key: hunter2}}]}", "log.otlp"),
        ("log: {jsonl: {folder: /tmp/x}}", "log.jsonl"),
    ],
)
def test_what_other_processes_were_started_with_is_refused_by_name(more: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        change(ECHO, ECHO + more)

    assert str(caught.value).startswith(f"{path}: cannot change while serving")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "more", ["approximate_above: 4096", "index: pgvector, pgvector_url: 'postgresql://u:hunter2@h/x'"]
)
def test_what_the_cache_owner_was_started_with_is_refused_by_name(more: str) -> None:
    with pytest.raises(SettingsError, match=r"cache\.semantic\.\w+: cannot change while serving") as caught:
        change("", f"cache: {{semantic: {{{more}}}}}")

    assert "hunter2" not in str(caught.value)


def test_a_collectors_secret_that_stays_is_no_change() -> None:
    collector = "log: {otlp: [{url: 'http://c/v1/traces', headers: {key: hunter2}}]%s}"

    change(ECHO + collector % "", ECHO + collector % ", content: none")
    with pytest.raises(SettingsError, match=r"log\.otlp: cannot change"):
        change(ECHO + collector % "", ECHO + (collector % "").replace("hunter2", "hunter3"))


def test_a_process_that_does_not_run_cannot_be_needed() -> None:
    with pytest.raises(SettingsError, match="engine does not run"):
        change(ECHO, ECHO.replace("echo}", "engine}"))
    with pytest.raises(SettingsError, match="cache owner does not run"):
        change(ECHO, ECHO.replace("enabled: false", "enabled: true"))
    change("", ECHO)
