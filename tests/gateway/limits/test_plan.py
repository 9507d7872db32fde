from __future__ import annotations

import pytest

from gateway.limits.reading import costs_of, limits_of
from gateway.limits.rules import Limits
from gateway.settings import SettingsError, parse_settings


def test_limits_of_callers_and_teams_are_read() -> None:
    text = "limits: {default: {rpm: 5, parallel: 2}, teams: {research: {budget_usd: 2.5, window: 30d}}}"

    settings = parse_settings(text, environment={})

    assert limits_of(settings.limits.default) == Limits(rpm=5, parallel=2)
    assert limits_of(settings.limits.teams["research"]) == Limits(budget_usd=2.5, window="30d")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("limits: {default: {rpm: 5}}\nlayers: [call_log, router]", "limits: has limits"),
        ("limits: {teams: {a: {tpm: 5}}}\nlayers: [call_log, router]", "limits: has limits"),
        ("limits: {teams: {a: {rpm: 0}}}", "limits.teams.a.rpm:"),
        ("limits: {default: {budget_usd: 5, window: 2d}}", "limits.default.window:"),
    ],
)
def test_limits_that_could_not_be_held_are_refused(text: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, environment={})

    assert str(caught.value).startswith(path)


def test_empty_limits_need_no_layer() -> None:
    text = "limits: {default: {rpm: null, window: 1h}}\nlayers: [call_log, router]"

    assert "limits" not in parse_settings(text, environment={}).layers


def test_a_call_may_cost_as_much_as_the_fallback() -> None:
    text = (
        "models: [{id: a, backends: [{type: echo}], fallbacks: [b], max_tokens: 7},"
        " {id: b, backends: [{type: echo}], price: {input_per_1m: 3}}]"
    )

    cost = costs_of(parse_settings(text, environment={}).models)["a"]

    assert cost.max_tokens == 7
    assert [price.input_per_1m for price in cost.prices] == [0, 3]


def test_a_call_may_cost_as_much_as_the_dearest_backend_and_the_dearest_model_that_may_be_chosen() -> None:
    text = """
    models:
      - {id: s, backends: [{type: echo, price: {input_per_1m: 9}}, {type: echo}], max_tokens: 7}
      - {id: l, backends: [{type: echo}], price: {input_per_1m: 5}, max_tokens: 70, fallbacks: [s]}
      - {id: auto, route: {by: complexity, small: s, medium: s, large: l}}
    """

    costs = costs_of(parse_settings(text, environment={}).models)

    assert [max(price.input_per_1m for price in costs[name].prices) for name in ("s", "l", "auto")] == [9, 9, 9]
    assert [costs[name].max_tokens for name in ("s", "l", "auto")] == [7, 70, 70]
