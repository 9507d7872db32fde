"""Bodies that are nearly right, through everything that reads a request before a backend is asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.anthropic.wire import AnthropicWire
from backends.openai_compatible.providers import PROVIDERS
from backends.openai_compatible.wire import OpenAIWire
from backends.remote import Wire
from cache.key import exact_key
from cache.partition import question_of, why_ineligible
from gateway.body import parse_object
from gateway.dialects import (
    AnthropicMessages,
    Dialect,
    OpenAIChat,
    OpenAICompletions,
    OpenAIEmbeddings,
    OpenAIResponses,
    Rerank,
)
from gateway.limits.estimate import Estimator, ModelCost
from logging_layer.codec import encode
from orchestration.core import Call, Request
from orchestration.core.complexity import ModelChoice
from orchestration.core.errors import BackendError, InvalidRequest
from tests.gateway.dialect_requests import ANTHROPIC_REQUEST, RESPONSES_REQUEST
from validators.texts import texts_of, with_texts

_TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
_CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"a":1}'}}
_PARTS = [
    {"type": "text", "text": "See"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
]
_GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
_OTHER_TOOLS = [
    {"type": "custom", "name": "patch", "description": "Patch", "format": _GRAMMAR},
    {"type": "local_shell"},
]
_OTHER_ITEMS = [
    {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    {"type": "local_shell_call", "call_id": "d", "action": {"type": "exec", "command": ["ls"], "env": {}}},
    {"type": "local_shell_call_output", "call_id": "d", "output": "a"},
]
_SAMPLING = {"temperature": 0.5, "top_p": 1, "n": 1, "stop": ["a"], "seed": 1, "logit_bias": {"5": 1}, "max_tokens": 9}
BODIES: Mapping[str, tuple[Dialect, Mapping[str, Any]]] = {
    "chat": (
        OpenAIChat(),
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": _PARTS},
                {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "Hm"},
                {"role": "tool", "tool_call_id": "a", "content": "rain"},
                {"role": "user", "content": "So?"},
            ],
            "tools": [_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
            "stream": True,
            "stream_options": {"include_usage": True},
            "logprobs": True,
            "top_logprobs": 2,
            "metadata": {"session_id": "s"},
            **_SAMPLING,
        },
    ),
    "completions": (OpenAICompletions(), {"model": "m", "prompt": ["Once", "Twice"], "echo": True, **_SAMPLING}),
    "embeddings": (OpenAIEmbeddings(), {"model": "m", "input": [[1, 2], [3]], "encoding_format": "base64"}),
    "rerank": (Rerank(), {"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1}),
    "messages": (
        AnthropicMessages(),
        {key: value for key, value in ANTHROPIC_REQUEST.items() if not key.startswith("extra_")}
        | {"top_k": 3, "stream": True},
    ),
    "responses": (
        OpenAIResponses(),
        {key: value for key, value in RESPONSES_REQUEST.items() if not key.startswith("extra_")}
        | {
            "stream": True,
            "tools": [*RESPONSES_REQUEST["tools"], *_OTHER_TOOLS],
            "input": [*RESPONSES_REQUEST["input"], *_OTHER_ITEMS],
        },
    ),
}
_ESTIMATOR = Estimator({"m": ModelCost()})
_CHOICE = ModelChoice(small="a", medium="b", large="c")
_WIRES: list[Wire] = [
    OpenAIWire("there"),
    *(OpenAIWire("there", provider=each, drops=True) for each in PROVIDERS.values()),
    AnthropicWire("there"),
]

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "\ud800", "\0", "user", "tool", "text", "function", "image", "auto", "tiny", "tool_use"])
)
_ANY = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "name", "id", "input", "function", "source", "url", "x"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@st.composite
def nearly(draw: st.DrawFn, body: Mapping[str, Any]) -> bytes:
    """Change one to four places of a good body: other values, keys that go, elements that come twice."""
    value = json.loads(json.dumps(body))
    for _ in range(draw(st.integers(1, 4))):
        value = _changed(draw, value)
    return json.dumps(value).encode()


def _changed(draw: st.DrawFn, value: Any) -> Any:
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 5)) == 0:
        return draw(_ANY)
    if isinstance(value, dict):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 5)) == 0:
            return {name: inner for name, inner in value.items() if name != key}
        return {**value, key: _changed(draw, value[key])}
    place = draw(st.integers(0, len(value) - 1))
    if draw(st.integers(0, 5)) == 0:
        return [*value, value[place]]
    return [*value[:place], _changed(draw, value[place]), *value[place + 1 :]]


def read(dialect: Dialect, body: bytes) -> None:
    """Read a body as a call does; only an error of the client's may come of it."""
    try:
        request = dialect.parse(body)
    except InvalidRequest:
        return
    _go_through(request)


def _go_through(request: Request) -> None:
    """Put a request through what the layers, the log and the backends' formats do with it."""
    call = Call(id="01", request_id="r", tenant="t", request=request, received_at=0.0, started=0.0)
    exact_key(call, route="r", policy="p")
    if why_ineligible(call) is None:
        question_of(call, route="r", policy="p")
    encode(request.fields, is_canonical=True)
    _CHOICE.choose(request)
    texts = texts_of(request)
    changed = with_texts(request, {text.path: "x" for text in texts}) if texts else request
    for wire in _WIRES:
        for asked in (request, changed):
            with contextlib.suppress(InvalidRequest, BackendError):  # the format cannot say it, or has no such call
                wire.ask(asked, backend="b")
    with contextlib.suppress(InvalidRequest):
        _ESTIMATOR.estimate(call)


def _fuzz(name: str, *, max_examples: int, derandomize: bool) -> None:
    dialect, body = BODIES[name]

    @settings(
        max_examples=max_examples,
        derandomize=derandomize,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(nearly(body))
    def check(mutant: bytes) -> None:
        read(dialect, mutant)

    run: Callable[[], None] = check
    run()


@pytest.mark.parametrize("name", BODIES)
def test_the_body_that_is_changed_is_a_good_one(name: str) -> None:
    dialect, body = BODIES[name]

    request = dialect.parse(json.dumps(body).encode())

    assert request.model == body["model"]
    assert parse_object(json.dumps(body).encode())
    _go_through(request)


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_is_nearly_right_is_read_or_refused(name: str) -> None:
    _fuzz(name, max_examples=400, derandomize=True)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", BODIES)
def test_a_hundred_thousand_bodies_that_are_nearly_right_are_read_or_refused(name: str) -> None:
    _fuzz(name, max_examples=17_000, derandomize=False)
