"""Routes as the settings give them, and what the admin side says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.deployments import deployment_id
from gateway.route_hash import RouteHashes
from gateway.routing import RoutingWatch, build_routes, choices_before_caches
from gateway.settings import BackendSettings, ModelSettings, Settings, parse_settings
from orchestration.core import Backend, Kind, Router, compose
from orchestration.core.balance import Strategy
from orchestration.core.chooser import Chooser
from orchestration.core.errors import BackendUnavailable
from orchestration.core.standing import Standings
from tests.gateway.serving import ask, parts_of, served
from tests.orchestration.scripts import Scripted, answer, collect, make_call

TWO = """
models:
  - id: m
    strategy: least_connections
    backends: [{type: echo, model: one}, {type: echo, model: two, weight: 3, price: {input_per_1m: 2}}]
    price: {input_per_1m: 1}
"""
AUTO = """
models:
  - {id: s, backends: [{type: echo}]}
  - {id: l, backends: [{type: openai_compatible, base_url: 'http://h/v1'}]}
  - {id: auto, route: {by: complexity, small: s, medium: s, large: l, cache_scope: SCOPE}}
"""
HARD = "Prove step by step that this lock-free queue is correct, and analyze its complexity in detail."


def scripted(_model: ModelSettings, backend: BackendSettings) -> Backend:
    return Scripted(answer(), name=backend.model or backend.type)


def read(text: str) -> Settings:
    return parse_settings(text, environment={})


def test_a_route_is_what_its_settings_say() -> None:
    route = build_routes(read(TWO), scripted, node="n")["m"]

    assert route.strategy is Strategy.LEAST_CONNECTIONS
    assert [(one.weight, one.price.input_per_1m) for one in route.targets()] == [(1, 1), (3, 2)]
    assert [one.id for one in route.targets()] == ["echo:(n)#one", "echo:(n)#two"]


@pytest.mark.parametrize(
    ("backend", "id"),
    [
        ({"type": "openai_compatible", "base_url": "http://h:1/v1"}, "openai_compatible:http://h:1/v1#m"),
        ({"type": "openai_compatible", "base_url": "http://u:pw@h/v1"}, "openai_compatible:http://h/v1#m"),
        (
            {"type": "openai_compatible", "base_url": "http://127.0.0.1/v1"},
            "openai_compatible:http://127.0.0.1/v1(n)#m",
        ),
        ({"type": "engine"}, "engine:n"),
    ],
)
def test_a_deployment_is_named_alike_on_every_node_that_means_it(backend: dict[str, str], id: str) -> None:
    settings = BackendSettings.model_validate(backend)

    assert deployment_id(Settings(), ModelSettings(id="m"), settings, node="n") == id


def test_two_keys_are_two_deployments_and_neither_can_be_read() -> None:
    ids = [
        deployment_id(
            Settings(),
            ModelSettings(id="m"),
            BackendSettings.model_validate({"type": "openai_compatible", "base_url": "http://h", "api_key": key}),
            node="n",
        )
        for key in ("first-secret", "second-secret")
    ]

    assert ids[0] != ids[1]
    assert not any("secret" in id for id in ids)


@pytest.mark.parametrize(("question", "model"), [("Hi!", "s"), (HARD, "l")])
@pytest.mark.parametrize("scope", ["alias", "model"])
async def test_the_model_follows_from_the_question_and_the_log_says_why(question: str, model: str, scope: str) -> None:
    settings = read(AUTO.replace("SCOPE", scope))
    routes = build_routes(settings, scripted, node="n")
    seen: list[str] = []
    handler = compose([Chooser(choices_before_caches(settings, routes))], Router(routes))
    call = make_call("auto", messages=[{"role": "user", "content": question}])

    await collect(handler(call))

    seen = [one.model for one in call.notes.attempts]
    decision = call.notes.extra["routing"]["complexity"]
    assert (seen, decision["model"], call.notes.is_fallback) == ([model], model, False)
    assert decision["features"]["chars"] == len(question)


def test_an_alias_that_chooses_answers_what_all_of_its_models_answer() -> None:
    routes = build_routes(read(AUTO.replace("SCOPE", "alias")), scripted, node="n")

    assert list(routes) == ["s", "l", "auto", "all-minilm-l6-v2"]
    assert routes["auto"].kinds == frozenset({Kind.CHAT, Kind.COMPLETION})


def test_an_aliass_hash_follows_what_it_may_choose() -> None:
    base = AUTO.replace("SCOPE", "alias")

    assert RouteHashes(read(base)).of("auto") != RouteHashes(read(base.replace("http://h", "http://x"))).of("auto")
    assert RouteHashes(read(base)).of("auto") != RouteHashes(read(base.replace("small: s", "small: l"))).of("auto")


async def test_the_admin_side_shows_how_backends_stand(tmp_path: Path) -> None:
    standings = Standings(clock=lambda: 100.0)  # the cool-down of a second is not over meanwhile
    routes = build_routes(read(TWO), scripted, node="n")
    watch = RoutingWatch(routes, standings=standings, redis_url=f"unix://{tmp_path}/x", health_interval_s=None)
    standings.failed(standings.of("echo:(n)#one"), BackendUnavailable("no route to it"))

    async with served(parts_of(backends=watch.describe)) as port:
        reply = await ask(port, "/admin/backends", method="GET")
    await watch.aclose()

    model = reply.json["models"][0]
    first, second = model["backends"]
    assert (model["model"], model["strategy"]) == ("m", "least_connections")
    assert (first["name"], first["last_error"], first["cooled_for"]) == ("one", "no route to it", "backend_unavailable")
    assert first["cooled_until"] > first["last_error_at"]
    assert (second["cooled_until"], second["in_flight"], second["weight"]) == (None, 0, 3)
