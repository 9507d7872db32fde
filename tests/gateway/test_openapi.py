from __future__ import annotations

import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from gateway.app import create_app
from gateway.parts import AppParts
from orchestration.core import Call, Delta, Event, Finish, Kind, Part, Start, Usage
from tests.gateway.serving import parts_of


async def _answer(call: Call, /) -> AsyncGenerator[Event, None]:
    yield Start("tiny-1", "fake")
    if call.kind is Kind.EMBEDDING:
        yield Delta(part=Part.PAYLOAD, data=[{"index": 0, "embedding": [0.5]}])
    elif call.kind is Kind.RERANK:
        yield Delta(part=Part.PAYLOAD, data=[{"index": 0, "relevance_score": 0.5}])
    else:
        yield Delta(text="Hello")
    yield Finish(usage=Usage(1, 1))


PARTS: AppParts = parts_of(_answer)
schema = schemathesis.openapi.from_dict(create_app(PARTS).openapi())


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """Serve from a thread: schemathesis asks with a blocking client."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = uvicorn.Server(uvicorn.Config(create_app(PARTS), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@schema.parametrize()  # type: ignore[untyped-decorator]  # schemathesis leaves it untyped
@settings(max_examples=5, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_server_does_what_its_document_says(case: schemathesis.Case, base_url: str) -> None:
    _check(case, base_url)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # hypothesis warns of what schemathesis gives it
@schema.parametrize()  # type: ignore[untyped-decorator]  # schemathesis leaves it untyped
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_server_does_what_its_document_says_at_length(case: schemathesis.Case, base_url: str) -> None:
    _check(case, base_url)


def _check(case: schemathesis.Case, base_url: str) -> None:
    meta = case.meta
    assert meta is not None
    header = meta.components.get(ParameterLocation.HEADER)
    excluded = []
    # A header that the document does not name is no error in HTTP, though its schema could be read so.
    if header is not None and header.mode is GenerationMode.NEGATIVE:
        excluded.append(negative_data_rejection)
    # JSON Schema takes 1.0 for an integer; OpenAI's API, and so this one, does not.
    if _has_whole_float(case.body):
        excluded.append(positive_data_acceptance)

    case.call_and_validate(base_url=base_url, excluded_checks=excluded)


def _has_whole_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_whole_float, value.values()))
    if isinstance(value, list):
        return any(map(_has_whole_float, value))
    return isinstance(value, float) and value.is_integer()
