from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.checks import MASK, plan_checks, secrets_mask
from gateway.refusals import SettingsError
from gateway.route_hash import RouteHashes
from gateway.settings import parse_settings
from gateway.supervisor.child import ChildSpec
from gateway.supervisor.place import Place, Sockets
from gateway.supervisor.plan import engine_spec, guard_spec, owner_spec, shipper_spec, worker_spec
from gateway.supervisor.state import StateFolder
from gateway.wired import Surroundings
from gateway.wiring import wire
from orchestration.core import Kind

ECHO = "models: [{id: echo, backends: [{type: echo}]}]\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    state = StateFolder(tmp_path / ".lamina")
    state.hold()
    state.ensure_tenant_key()
    run = tmp_path / "run"
    run.mkdir()
    return Place(state=state, run=run, environment={"PATH": "/bin"})


def surroundings(place: Place, folder: Path) -> Surroundings:
    return Surroundings(
        state=place.state, sockets=Sockets(place.run), folder=folder, worker="worker-0", is_draining=lambda: False
    )


def hash_of(text: str, alias: str = "a") -> str:
    return RouteHashes(parse_settings(text, environment={})).of(alias)


async def test_a_worker_watches_the_parts_that_are_on_and_no_others(place: Place, tmp_path: Path) -> None:
    settings = parse_settings(ECHO + "cache: {semantic: {enabled: false}}", environment={})

    wired = wire(settings, surroundings(place, tmp_path))

    assert sorted(wired.parts.health) == ["keys", "log", "log_shipper", "store"]
    assert [(card.id, card.kinds) for card in wired.parts.models] == [("echo", frozenset({Kind.CHAT, Kind.COMPLETION}))]
    await wired.aclose()


async def test_a_master_key_and_further_hosts_reach_the_gate(place: Place, tmp_path: Path) -> None:
    text = ECHO + "keys: {master: k}\nserver: {allowed_hosts: [gateway.example]}\nlayers: [router]"

    wired = wire(parse_settings(text, environment={}), surroundings(place, tmp_path))

    access = wired.parts.access
    assert access.master_key is not None
    assert access.master_key.matches("k")
    assert {"localhost", "127.0.0.1", "gateway.example"} <= set(access.allowed_hosts)
    await wired.aclose()


def test_a_route_hashes_alike_until_what_answers_changes() -> None:
    base = "models: [{id: a, backends: [{type: openai_compatible, base_url: 'http://x', model: m, api_key: k}]}]"

    assert hash_of(base) == hash_of(base.replace("api_key: k", "api_key: other"))
    assert hash_of(base) != hash_of(base.replace("model: m", "model: n"))
    assert hash_of(base) != hash_of(base.replace("http://x", "http://y"))
    assert hash_of(base, "nobody") == "unknown"


def test_a_route_hashes_with_its_engines_type_and_its_fallbacks() -> None:
    engine = "models: [{id: a, backends: [{type: engine}]}]"
    fallback = "models: [{id: a, backends: [{type: echo}], fallbacks: [b]}, {id: b, backends: [{type: TYPE}]}]"

    assert hash_of(engine) != hash_of(engine + "\nengine: {dtype: float32}")
    precisions = {hash_of(engine + f"\nengine: {{quantization: {name}}}") for name in ("none", "int8", "int4")}
    assert len(precisions) == 3
    assert hash_of(fallback.replace("TYPE", "echo")) != hash_of(fallback.replace("TYPE", "engine"))


def test_fallbacks_in_a_circle_can_be_hashed() -> None:
    text = (
        "models: [{id: a, backends: [{type: echo}], fallbacks: [b]}, {id: b, backends: [{type: echo}], fallbacks: [a]}]"
    )

    assert hash_of(text) != hash_of(text, "b")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("validators: {input: [{check: lenght}]}", "validators.input[0].check"),
        ("validators: {output: [{check: length, max_chars: many}]}", "validators.output[0].max_chars"),
        ("validators: {output: [{check: secrets, on_fail: explode}]}", "validators.output[0].on_fail"),
    ],
)
def test_a_wrong_check_is_refused_by_its_field(text: str, field: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plan_checks(parse_settings(text, environment={}))

    assert str(caught.value).startswith(field)


def test_checks_of_a_layer_that_was_cut_are_not_in_force() -> None:
    plan = plan_checks(parse_settings("layers: [call_log, router]", environment={}))

    assert plan.input == ()
    assert not plan.finds_secrets


def test_the_log_masks_secrets_and_leaves_the_rest() -> None:
    mask = secrets_mask()

    assert mask("key: ghp_" + "a" * 36 + ", thanks") == f"key: {MASK}, thanks"
    assert mask("nothing here \ud800") == "nothing here ?"


def test_passwords_stand_in_no_command(place: Place) -> None:
    settings = parse_settings(
        """
        redis: {url: 'redis://:hunter2@h'}
        database: {url: 'postgresql://u:hunter2@h/x'}
        cache: {semantic: {index: pgvector}}
        log: {otlp: [{url: 'http://c/v1/traces', headers: {x-key: hunter2}}]}
        """,
        environment={},
    )
    specs = [
        owner_spec(settings, place, model=Path("m")),
        shipper_spec(settings, place, mlflow_uri=None),
        worker_spec(settings, place, index=0, descriptor=3),
        engine_spec(settings, place, model=Path("m")),
    ]

    assert not any("hunter2" in word for spec in specs for word in spec.command)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_every_process_of_ours_is_told_how_to_write_its_log(place: Place, log_format: str) -> None:
    settings = parse_settings(f"server: {{log_format: {log_format}}}", environment={})
    specs = [
        owner_spec(settings, place, model=Path("m")),
        shipper_spec(settings, place, mlflow_uri=None),
        engine_spec(settings, place, model=Path("m")),
        guard_spec([], settings, place),
    ]

    for spec in specs:
        *_, last = spec.command
        words = Path(last[1:]).read_text().splitlines() if last.startswith("@") else spec.command
        assert ("--log-json" in words) is (log_format == "json"), spec.name


def test_only_the_engine_gets_more_than_one_thread(place: Place) -> None:
    settings = parse_settings("engine: {threads: 7}", environment={})

    engine = engine_spec(settings, place, model=Path("m")).environment
    owner = owner_spec(settings, place, model=Path("m")).environment

    assert (engine["OMP_NUM_THREADS"], owner["OMP_NUM_THREADS"]) == ("7", "1")
    assert engine["OMP_WAIT_POLICY"] == owner["OMP_WAIT_POLICY"] == "PASSIVE"
    assert engine["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("spec_of", [owner_spec, engine_spec])
def test_models_have_huge_pages_unless_whoever_started_us_said_otherwise(
    place: Place, spec_of: Callable[..., ChildSpec]
) -> None:
    settings = parse_settings("", environment={})
    told = replace(place, environment={"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})

    specs = [spec_of(settings, where, model=Path("m")) for where in (place, told)]

    assert [spec.environment["GLIBC_TUNABLES"] for spec in specs] == [
        "glibc.malloc.hugetlb=1",
        "glibc.malloc.hugetlb=1:glibc.malloc.hugetlb=0",
    ]


@pytest.mark.parametrize(("libc", "malloc"), [("glibc", "malloc"), ("", None)])
def test_a_workers_objects_lie_in_huge_pages_where_glibc_gives_them(
    place: Place, monkeypatch: pytest.MonkeyPatch, libc: str, malloc: str | None
) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: (libc, ""))
    told = replace(place, environment={"PYTHONMALLOC": "pymalloc"})

    plain, other = (
        worker_spec(parse_settings("", environment={}), where, index=0, descriptor=9).environment
        for where in (place, told)
    )

    assert plain.get("PYTHONMALLOC") == malloc
    assert ("GLIBC_TUNABLES" in plain) is (malloc is not None)
    assert other["PYTHONMALLOC"] == "pymalloc"
