from __future__ import annotations

import logging
from typing import Any

import pytest
import yaml

from gateway.refusals import SettingsError
from gateway.settings import Settings, parse_settings
from orchestration.core.balance import Strategy

TEAM_FILE = """
model_list:
  - model_name: gpt-4o
    litellm_params:
      model: openai/gpt-4o
      api_key: os.environ/OPENAI_API_KEY
      rpm: 480
      timeout: 300
      stream_timeout: 30
    model_info: {id: primary, mode: chat, input_cost_per_token: 0.0000025, output_cost_per_token: 0.00001}
  - model_name: gpt-4o
    litellm_params:
      model: hosted_vllm/meta-llama/Llama-3.1-70B-Instruct
      api_base: http://10.0.0.5:8000/v1
      rpm: 120
  - model_name: claude
    litellm_params:
      model: anthropic/claude-sonnet-4-5
      api_key: os.environ/ANTHROPIC_API_KEY
    model_info: {max_output_tokens: 64000}
  - model_name: local
    litellm_params: {model: ollama/llama3, api_base: "http://localhost:11434"}
  - model_name: ranker
    litellm_params: {model: jina_ai/jina-reranker-v2, api_key: os.environ/JINA_API_KEY}

litellm_settings:
  drop_params: true
  set_verbose: false
  num_retries: 3
  request_timeout: 600
  fallbacks: [{"gpt-4o": ["claude"]}]
  success_callback: ["langfuse"]
  cache: true
  cache_params: {type: redis, host: os.environ/REDIS_HOST, port: 6380, password: os.environ/REDIS_PASSWORD, ttl: 600}

router_settings:
  routing_strategy: simple-shuffle
  model_group_alias: {"gpt-4": "gpt-4o"}
  allowed_fails: 3
  cooldown_time: 30

general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
  database_url: os.environ/DATABASE_URL
"""
ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-openai",
    "ANTHROPIC_API_KEY": "sk-ant",
    "JINA_API_KEY": "jina",
    "REDIS_HOST": "redis.internal",
    "REDIS_PASSWORD": "secret",
    "LITELLM_MASTER_KEY": "sk-master",
}


def parse(text: str, **environment: str) -> Settings:
    return parse_settings(text, environment={**ENVIRONMENT, **environment})


def refusal(**sections: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(yaml.safe_dump(sections))
    return str(caught.value)


def one(**params: Any) -> list[dict[str, Any]]:
    return [{"model_name": "a", "litellm_params": {"model": "openai/x", "api_base": "http://h/v1", **params}}]


def test_a_teams_file_becomes_models_with_backends_keys_and_stores() -> None:
    settings = parse(TEAM_FILE)

    models = {model.id: model for model in settings.models}
    assert list(models) == ["gpt-4o", "claude", "local", "ranker", "gpt-4"]
    first, second = models["gpt-4o"].backends
    assert (first.type, first.provider, first.base_url, first.model) == (
        "openai_compatible",
        "openai",
        "https://api.openai.com/v1",
        "gpt-4o",
    )
    assert first.api_key is not None
    assert first.api_key.reveal() == "sk-openai"
    assert (first.weight, first.timeout_s.total, first.timeout_s.first_token) == (480, 300, 30)
    assert first.price is not None
    assert (first.price.input_per_1m, first.price.output_per_1m) == (2.5, 10)
    assert (second.provider, second.base_url) == ("vllm", "http://10.0.0.5:8000/v1")
    assert (second.model, second.weight, second.timeout_s.total) == ("meta-llama/Llama-3.1-70B-Instruct", 120, 600)
    assert (models["gpt-4o"].strategy, models["gpt-4o"].retries) == (Strategy.WEIGHTED, 3)
    assert models["gpt-4o"].fallbacks == ("claude",)
    assert [each.model for each in models["gpt-4"].backends] == [first.model, second.model]
    claude = models["claude"].backends[0]
    assert (claude.type, claude.base_url, claude.model) == (
        "anthropic",
        "https://api.anthropic.com",
        "claude-sonnet-4-5",
    )
    assert (models["claude"].max_tokens, claude.drop_params) == (64000, False)
    assert models["local"].backends[0].base_url == "http://localhost:11434/v1"
    assert models["local"].backends[0].drop_params
    assert models["ranker"].backends[0].base_url == "https://api.jina.ai/v1"
    assert settings.keys.master is not None
    assert settings.keys.master.reveal() == "sk-master"
    assert settings.redis.url is not None
    assert settings.redis.url.reveal() == "redis://:secret@redis.internal:6380"
    assert (settings.cache.exact.ttl_s, settings.cache.semantic.enabled) == (600, False)


def test_what_is_left_aside_is_reported_by_its_path(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="gateway.settings.load"):
        parse(TEAM_FILE)

    reported = [record.getMessage() for record in caplog.records]
    for path in (
        "model_list[0].litellm_params.rpm",
        "model_list[0].model_info.id",
        "litellm_settings.set_verbose",
        "litellm_settings.success_callback",
        "router_settings.cooldown_time",
        "general_settings.database_url",
    ):
        assert [line for line in reported if path in line], path
    assert "secret" not in " ".join(reported)


def test_sections_of_ours_may_stand_beside() -> None:
    settings = parse(yaml.safe_dump({"model_list": one(), "server": {"port": 8080}, "log": {"content": "none"}}))

    assert (settings.server.port, settings.content) == (8080, "none")
    assert settings.models[0].backends[0].provider is None


@pytest.mark.parametrize(
    ("strategy", "ours"),
    [
        ("simple-shuffle", Strategy.WEIGHTED),
        ("least-busy", Strategy.LEAST_CONNECTIONS),
        ("latency-based-routing", Strategy.LATENCY),
        ("cost-based-routing", Strategy.COST),
    ],
)
def test_strategies_have_our_names(strategy: str, ours: Strategy) -> None:
    text = yaml.safe_dump({"model_list": one(weight=2), "router_settings": {"routing_strategy": strategy}})

    assert parse(text).models[0].strategy == ours


def test_variables_of_the_file_come_before_the_environment() -> None:
    text = yaml.safe_dump(
        {
            "model_list": one(api_key="os.environ/OPENAI_API_KEY"),
            "environment_variables": {"OPENAI_API_KEY": "sk-of-the-file"},
        }
    )
    key = parse(text).models[0].backends[0].api_key

    assert key is not None
    assert key.reveal() == "sk-of-the-file"


def test_a_cache_that_is_off_is_off() -> None:
    settings = parse(yaml.safe_dump({"model_list": one(), "litellm_settings": {"cache": False}}))

    assert not settings.cache.exact.enabled
    assert not settings.cache.semantic.enabled


def test_a_semantic_cache_keeps_its_bar() -> None:
    params = {"type": "redis-semantic", "url": "redis://h:1", "similarity_threshold": 0.97}
    settings = parse(yaml.safe_dump({"model_list": one(), "litellm_settings": {"cache": True, "cache_params": params}}))

    assert (settings.cache.semantic.enabled, settings.cache.semantic.threshold) == (True, 0.97)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model_list": []}, ["model_list", "at least one"]),
        ({"model_list": {"a": 1}}, ["model_list", "at least one"]),
        ({"model_list": ["a"]}, ["model_list[0]", "mapping"]),
        ({"model_list": one(), "models": []}, ["model_list", "keep one"]),
        ({"model_list": [{"model_name": "*", "litellm_params": {"model": "openai/*"}}]}, ["model_name", "'*'"]),
        ({"model_list": one(model="bedrock/claude")}, ["litellm_params.model", "bedrock/claude", "hosted_vllm/"]),
        ({"model_list": one(model="gemini-pro")}, ["litellm_params.model", "gemini-pro"]),
        ({"model_list": one(model="hosted_vllm/x", api_base=None)}, []),
        ({"model_list": one(model="infinity/x", api_base=None)}, ["litellm_params.model", "api_base"]),
        ({"model_list": one(temperature=0.5)}, ["model_list[0].litellm_params.temperature", "no meaning"]),
        ({"model_list": one(api_baze="x")}, ["litellm_params.api_baze", "did you mean 'api_base'"]),
        ({"model_list": one(), "litellm_settings": {"num_retrys": 1}}, ["num_retrys", "did you mean 'num_retries'"]),
        ({"model_list": one(), "litellm_settings": {"context_window_fallbacks": []}}, ["context_window_fallbacks"]),
        ({"model_list": one(), "litellm_settings": {"fallbacks": [{"b": ["a"]}]}}, ["fallbacks", "'b'"]),
        ({"model_list": one(), "router_settings": {"routing_strategy": "usage-based-routing"}}, ["no counterpart"]),
        ({"model_list": one(), "router_settings": {"model_group_alias": {"c": "b"}}}, ["model_group_alias.c"]),
        ({"model_list": one(), "general_settings": {"allowed_routes": []}}, ["general_settings.allowed_routes"]),
        (
            {"model_list": one(), "general_settings": {"master_key": "a"}, "keys": {"master": "b"}},
            ["keys.master", "keep one"],
        ),
        (
            {"model_list": one(), "litellm_settings": {"cache": True, "cache_params": {"type": "s3"}}},
            ["cache_params.type", "'s3'"],
        ),
        ({"model_list": one(api_key="os.environ/NOT_THERE")}, ["NOT_THERE", "api_key"]),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(sections: dict[str, Any], words: list[str]) -> None:
    if not words:
        assert parse(yaml.safe_dump(sections)).models[0].backends[0].base_url == "http://127.0.0.1:8000/v1"
        return
    message = refusal(**sections)

    assert [word for word in words if word not in message] == []
