from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from gateway.refusals import SettingsError
from gateway.settings import Settings, load_settings, parse_settings


def parse(text: str = "", **environment: str) -> Settings:
    return parse_settings(text, environment=environment)


def refusal(text: str = "", **environment: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse(text, **environment)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_empty_file_gives_both_built_in_models() -> None:
    settings = parse()

    assert [model.id for model in settings.models] == ["smollm2-135m-instruct", "all-minilm-l6-v2"]
    assert settings.uses_engine
    assert settings.uses_embedder


def test_a_section_whose_keys_are_all_commented_out_keeps_its_defaults() -> None:
    assert parse("server:\n  # port: 1\n").server.port == 4000


def test_the_shape_of_the_documentation_is_read_as_it_stands() -> None:
    text = """
    server: {host: 127.0.0.1, port: 4000, workers: 1, max_body_mb: 20, stream_commit_s: 10, drain_s: 30}
    models:
      - id: smollm2-135m-instruct
        backends: [{type: engine}]
      - id: my-model
        backends:
          - {type: openai_compatible, base_url: "http://10.0.0.5:8000/v1", model: name-there, api_key: "${MY_KEY}",
             weight: 1, timeout_s: {connect: 5, first_token: 60, total: 600}}
        retries: 1
        fallbacks: [smollm2-135m-instruct]
        price: {input_per_1m: 0.15, cached_input_per_1m: 0.075, output_per_1m: 0.60}
    layers: [call_log, limits, input_checks, exact_cache, semantic_cache, output_checks, router]
    cache:
      exact: {enabled: true, ttl_s: 86400}
      semantic: {enabled: true, policy: static, threshold: 0.95, ttl_s: 86400, top_k: 5, deadline_ms: 50,
                 wrong_to_call_cost: 25, shadow_share: 0.01, max_batch_size: 32, max_queue_delay_ms: 2}
    validators:
      input: [{check: length, max_chars: 200000, on_fail: block}, {check: secrets, on_fail: rewrite}]
      output: []
    keys: {required: false}
    limits: {default: {rpm: null, tpm: null, parallel: null, budget_usd: null, window: 1d}}
    log: {content: full, sample: 1.0, retention_days: 30}
    engine: {model: smollm2-135m-instruct, device: auto, dtype: bfloat16, quantization: none, kv_dtype: auto,
             page_size: 16, kv_memory_mb: auto, max_num_seqs: 64, max_batched_tokens: auto, admission: future_peak,
             prefix_cache: true, connect: null}
    redis: {url: null}
    database: {url: null}
    mlflow: {uri: null, serve: false}
    """

    settings = parse(text, MY_KEY="sk-123")

    key = settings.models[1].backends[0].api_key
    assert key is not None
    assert key.reveal() == "sk-123"
    # The encoder runs for the semantic cache, so it is listed as a model too.
    assert [model.id for model in settings.models] == ["smollm2-135m-instruct", "my-model", "all-minilm-l6-v2"]


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("LAMINA_ENGINE__DTYPE", "float32", lambda s: s.engine.dtype == "float32"),
        ("LAMINA_CACHE__SEMANTIC__THRESHOLD", "0.9", lambda s: s.cache.semantic.threshold == 0.9),
        ("LAMINA_CACHE__SEMANTIC__THRESHOLD", "0", lambda s: s.cache.semantic.threshold == 0.0),
        ("LAMINA_SERVER__PORT", "0", lambda s: s.server.port == 0),
        ("LAMINA_ENGINE__PREFIX_CACHE", "false", lambda s: s.engine.prefix_cache is False),
        ("LAMINA_ENGINE__KV_MEMORY_MB", "auto", lambda s: s.engine.kv_memory_mb is None),
        ("LAMINA_ENGINE__KV_MEMORY_MB", "64", lambda s: s.engine.kv_memory_mb == 64),
        ("LAMINA_REDIS__URL", "redis://h:1", lambda s: s.redis.url.reveal() == "redis://h:1"),
        ("LAMINA_REDIS__URL", "null", lambda s: s.redis.url is None),
        ("LAMINA_KEYS__MASTER", "12345", lambda s: s.keys.master.reveal() == "12345"),
        ("LAMINA_LOG__CONTENT", "none", lambda s: s.log.content == "none"),
        ("LAMINA_VALIDATORS__INPUT", "[]", lambda s: s.validators.input == ()),
    ],
)
def test_the_environment_overrides_any_scalar(name: str, value: str, read: object) -> None:
    assert callable(read)
    assert read(parse("", **{name: value}))


def test_the_environment_reaches_into_the_elements_of_a_list_of_the_file() -> None:
    text = "models: [{id: a, backends: [{type: openai_compatible, base_url: 'http://x'}]}]"

    settings = parse(text, LAMINA_MODELS__0__BACKENDS__0__BASE_URL="http://y")

    assert settings.models[0].backends[0].base_url == "http://y"


def test_variables_that_name_no_section_are_not_ours_to_judge() -> None:
    assert parse("", LAMINA_MASTER_KEY="x", LAMINA="y").keys.master is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server: {prot: 1}", ["server.prot", "did you mean 'port'"]),
        ("serve: {}", ["serve:", "did you mean 'server'"]),
        ("server: {port: 70000}", ["server.port", "65535", "70000"]),
        ("server: {port: four}", ["server.port", "integer", "'four'"]),
        ("server: {workers: 0}", ["server.workers", "1"]),
        ("engine: {dtype: fp8}", ["engine.dtype", "'bfloat16' or 'float32'", "'fp8'"]),
        ("cache: {semantic: {threshold: 1.5}}", ["cache.semantic.threshold", "1.5"]),
        ("cache: {semantic: {wrong_to_call_cost: 0}}", ["cache.semantic.wrong_to_call_cost", "0"]),
        ("models: [{id: a, backends: [{typ: echo}]}]", ["models[0].backends[0].typ", "did you mean 'type'"]),
        ("models: [{id: a, backends: [{type: ecko}]}]", ["models[0].backends[0].type", "did you mean 'echo'"]),
        ("models: [{id: a}]", ["models[0].backends", "'a'"]),
        ("models: []", ["models", "at least one"]),
        ("models: [{id: a, backends: [{type: echo}]}, {id: a, backends: [{type: echo}]}]", ["models[1].id", "twice"]),
        ("models: [{id: a, backends: [{type: echo}], fallbacks: [b]}]", ["models[0].fallbacks[0]", "'b'"]),
        ("models: [{id: a, backends: [{type: openai_compatible}]}]", ["base_url"]),
        ("models: [{id: a, backends: [{type: anthropic}]}]", ["models[0].backends[0].base_url"]),
        ("models: [{id: a, backends: [{type: echo, base_url: 'http://x'}]}]", ["base_url", "echo"]),
        ("models: [{id: a, backends: [{type: engine, model: other}]}]", ["engine.model", "'other'"]),
        ("keys: {master: '${NOT_THERE}'}", ["keys.master", "NOT_THERE"]),
        ("keys: {required: true}", ["keys.required", "master"]),
        ("keys: {master_file: /no/such/file}", ["keys.master_file", "/no/such/file"]),
        ("mlflow: {serve: true, uri: 'http://x'}", ["mlflow.serve", "mlflow.uri"]),
        ("cache: {semantic: {index: pgvector}}", ["cache.semantic.pgvector_url", "database.url", "postgresql://"]),
        ("cache: {semantic: {index: milvus}}", ["cache.semantic.index", "faiss", "pgvector"]),
        ("cache: {semantic: {approximate_above: 3}}", ["cache.semantic.approximate_above", "256"]),
        ("a: [", ["not YAML"]),
        ("[1, 2]", ["sections", "server"]),
        ("server: 3", ["server"]),
    ],
)
def test_what_is_wrong_is_named_by_its_path_with_what_would_be_right(text: str, words: list[str]) -> None:
    message = refusal(text)

    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("cache: {semantic: {policy: verified}}", "cache.semantic.policy"),
    ],
)
def test_what_is_not_built_is_refused_by_name(text: str, path: str) -> None:
    message = refusal(text)

    assert message.startswith(f"{path}:")
    assert "not built" in message or "not read" in message


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("{id: b, strategy: fastest, backends: [{type: echo}]}", "models[1].strategy"),
        ("{id: b, backends: [{type: echo, weight: 2}]}", "models[1].backends[0].weight"),
        ("{id: b, backends: [{type: echo}], hedge: {max_share: 2}}", "models[1].hedge.max_share"),
        ("{id: b, route: {by: complexity, small: a, medium: a, large: x}}", "models[1].route.large"),
        ("{id: b, route: {by: complexity, small: b, medium: a, large: a}}", "models[1].route.small"),
        ("{id: b, route: {by: mood, small: a, medium: a, large: a}}", "models[1].route.by"),
        (
            "{id: b, backends: [{type: echo}], route: {by: complexity, small: a, medium: a, large: a}}",
            "models[1].route",
        ),
    ],
)
def test_wrong_routing_is_named_by_its_path(model: str, path: str) -> None:
    assert refusal(f"models: [{{id: a, backends: [{{type: echo}}]}}, {model}]").startswith(f"{path}:")


def test_backends_and_their_strategies_are_read() -> None:
    text = """
    models:
      - {id: a, strategy: weighted, hedge: {after_ms: 200}, backends: [{type: echo, weight: 3}, {type: echo}]}
      - {id: b, strategy: cost, backends: [{type: echo, price: {input_per_1m: 1}}, {type: echo}]}
      - {id: auto, route: {by: complexity, small: a, medium: a, large: b, cache_scope: model}}
    """

    first, second, auto = parse_settings(text, environment={}).models[:3]

    assert ([one.weight for one in first.backends], first.hedge and first.hedge.after_ms) == ([3, 1], 200)
    assert second.backends[0].price is not None
    assert auto.route is not None
    assert (auto.route.models, auto.route.cache_scope) == (("a", "a", "b"), "model")


def test_a_wrong_override_names_its_variable() -> None:
    message = refusal("", LAMINA_CACHE__SEMANTIC__TRESHOLD="1")

    assert "did you mean 'threshold'" in message
    assert "LAMINA_CACHE__SEMANTIC__TRESHOLD" in message


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    assert "hunter2" not in refusal("keys: {master: [hunter2]}")
    assert "hunter2" not in repr(parse("keys: {master: hunter2}"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "gateway.example"])
def test_off_loopback_a_master_key_is_needed(host: str) -> None:
    assert "keys.master" in refusal("", LAMINA_SERVER__HOST=host)
    assert parse("", LAMINA_SERVER__HOST=host, LAMINA_KEYS__MASTER="k").keys.master is not None


def test_the_master_key_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-master\n")

    settings = parse(yaml.safe_dump({"keys": {"required": True, "master_file": str(file)}}))

    assert settings.keys.master is not None
    assert settings.keys.master.reveal() == "sk-master"


def test_a_master_key_file_that_is_not_there_is_made_once(tmp_path: Path) -> None:
    text = yaml.safe_dump({"keys": {"required": True, "master_file": str(tmp_path / "key")}})

    first, second = parse(text).keys.master, parse(text).keys.master

    assert first is not None
    assert second is not None
    assert len(first.reveal()) > 40
    assert first.reveal() == second.reveal()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("log", "path"),
    [
        ("otlp: [{url: collector}]", "log.otlp[0].url"),
        ("otlp: [{url: 'http://c/v1/traces', headers: {'a b': x}}]", "log.otlp[0].headers"),
        ("jsonl: {max_files: 3}", "log.jsonl.folder"),
        ("retention_days: 0", "log.retention_days"),
    ],
)
def test_a_sink_of_the_log_that_cannot_be_is_named(log: str, path: str) -> None:
    assert refusal(f"log: {{{log}}}").startswith(path)


def test_a_collectors_headers_are_never_shown() -> None:
    settings = parse("log: {otlp: [{url: 'http://c/v1/traces', headers: {x-api-key: '${KEY}'}}]}", KEY="hunter2")

    assert settings.log.otlp[0].headers["x-api-key"].reveal() == "hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.model_dump())


def test_an_empty_master_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("\n")

    assert "empty" in refusal("keys: {master: ''}")
    assert "empty" in refusal(f"keys: {{master_file: {tmp_path / 'key'}}}")


@pytest.mark.parametrize(
    ("environment", "content"),
    [
        ({}, "full"),
        ({"LAMINA_SERVER__HOST": "0.0.0.0", "LAMINA_KEYS__MASTER": "k"}, "redacted"),
        ({"LAMINA_LOG__CONTENT": "none"}, "none"),
    ],
)
def test_the_log_keeps_content_on_loopback_alone_where_nothing_is_set(
    environment: Mapping[str, str], content: str
) -> None:
    assert parse_settings("", environment=environment).content == content


@pytest.mark.parametrize(
    ("text", "is_used"),
    [
        ("models: [{id: a, backends: [{type: echo}]}]", True),
        ("{models: [{id: a, backends: [{type: echo}]}], cache: {semantic: {enabled: false}}}", False),
        ("{models: [{id: a, backends: [{type: echo}]}], layers: [call_log, exact_cache, router]}", False),
        ("{models: [{id: a, backends: [{type: embedder}]}], layers: [router]}", True),
    ],
)
def test_the_cache_owner_is_wanted_only_where_something_uses_it(text: str, is_used: bool) -> None:
    assert parse(text).uses_embedder is is_used


def test_checks_without_the_layer_that_runs_them_are_refused() -> None:
    text = "{validators: {output: [{check: banned_words}]}, layers: [call_log, router]}"

    assert "output_checks" in refusal(text)
    assert parse("layers: [call_log, router]").validators.input  # the defaults go with their layer


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read .*none\.yaml"):
        load_settings(tmp_path / "none.yaml", environment={})


def test_the_file_is_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("server: {prot: 1}")

    with pytest.raises(SettingsError, match=r"mine\.yaml: server\.prot"):
        load_settings(file, environment={})
