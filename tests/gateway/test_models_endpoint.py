from __future__ import annotations

from typing import Any

import anthropic
import pytest
from openai import NotFoundError

from gateway.parts import Access, ModelCard
from orchestration.core import Kind, Secret
from orchestration.core.errors import Unauthorized
from tests.gateway.serving import Reply, ask, client_of, parts_of, served
from tests.gateway.test_anthropic_messages import client_of as anthropic_client_of

MODELS = tuple(ModelCard(f"m{place}", frozenset([Kind.CHAT]), created=1_700_000_000 + place) for place in range(5))


class Keys:
    """One key, bound to two models and a third that is not here."""

    is_in_use = True

    def admit(self, bearer: str) -> str:
        if bearer != "sk-bound":
            raise Unauthorized("Incorrect API key provided.")
        return "key-1"

    def may_use(self, key_id: str, model: str) -> bool:
        return key_id != "key-1" or model in ("m1", "m3", "gone")


BOUND = Access(tenant_key=Secret("k"), keys=Keys(), master_key=Secret("sk-master"))


async def test_a_key_sees_the_models_that_it_may_ask_for() -> None:
    async with client_of(parts_of(models=MODELS, access=BOUND), api_key="sk-bound") as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("m3")
        with pytest.raises(NotFoundError) as caught:
            await client.models.retrieve("m2")
    async with client_of(parts_of(models=MODELS, access=BOUND), api_key="sk-master") as client:
        everything = [model.id async for model in client.models.list()]

    assert listed == ["m1", "m3"]
    assert (one.id, one.created) == ("m3", 1_700_000_003)
    assert caught.value.code == "model_not_found"
    assert len(everything) == 5


async def test_anthropics_client_lists_models_in_its_own_shape() -> None:
    async with anthropic_client_of(parts_of(models=MODELS)) as client:
        listed = [model async for model in client.models.list(limit=2)]
        one = await client.models.retrieve("m3")
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.models.retrieve("none")

    assert [model.id for model in listed] == ["m0", "m1", "m2", "m3", "m4"]
    assert (one.type, one.display_name, one.created_at.isoformat()) == ("model", "m3", "2023-11-14T22:13:23+00:00")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("query", "ids", "has_more"),
    [
        ("", ["m0", "m1", "m2", "m3", "m4"], False),
        ("?limit=1000", ["m0", "m1", "m2", "m3", "m4"], False),
        ("?limit=2", ["m0", "m1"], True),
        ("?limit=2&after_id=m1", ["m2", "m3"], True),
        ("?limit=2&after_id=m3", ["m4"], False),
        ("?limit=2&after_id=m4", [], False),
        ("?limit=2&before_id=m3", ["m1", "m2"], True),
        ("?limit=2&before_id=m1", ["m0"], False),
    ],
)
async def test_pages_follow_one_another(query: str, ids: list[str], has_more: bool) -> None:
    page = (await _asked(query)).json

    assert ([model["id"] for model in page["data"]], page["has_more"]) == (ids, has_more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    ("query", "param"),
    [("?limit=0", "limit"), ("?limit=1001", "limit"), ("?limit=x", "limit"), ("?after_id=x", "after_id")],
)
async def test_a_wrong_page_is_a_400_in_anthropics_shape(query: str, param: str) -> None:
    reply = await _asked(query)

    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert param in reply.json["error"]["message"]


async def _asked(query: str, **changes: Any) -> Reply:
    async with served(parts_of(models=MODELS, **changes)) as port:
        return await ask(port, f"/v1/models{query}", method="GET", headers={"anthropic-version": "2023-06-01"})
