from __future__ import annotations

import pytest

from gateway.access import DEFAULT_TENANT, Gatekeeper
from gateway.parts import Access
from orchestration.core import Secret
from orchestration.core.errors import Forbidden
from tests.gateway.serving import CHAT, Script, ask, chat, parts_of, served

OPEN = Access(tenant_key=Secret("k"))
LOCKED = Access(tenant_key=Secret("k"), master_key=Secret("sk-master"))


def _tenant(access: Access = OPEN, **headers: str) -> str:
    return Gatekeeper(access).tenant_of(
        {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    )


def test_each_bearer_is_its_own_tenant() -> None:
    tenants = {
        _tenant(),
        _tenant(authorization="Bearer a"),
        _tenant(authorization="Bearer b"),
        _tenant(authorization="Basic a"),
    }

    assert len(tenants) == 4
    assert DEFAULT_TENANT in tenants


def test_same_key_is_the_same_tenant_however_it_came() -> None:
    names = {_tenant(authorization="Bearer a"), _tenant(authorization="bearer  a "), _tenant(x_api_key="a")}

    assert len(names) == 1


def test_tenant_name_holds_no_secret_and_depends_on_the_installation() -> None:
    here = _tenant(authorization="Bearer sk-secret")
    there = _tenant(Access(tenant_key=Secret("other")), authorization="Bearer sk-secret")

    assert "secret" not in here
    assert here != there


@pytest.mark.parametrize("value", ["", "Bearer", "Bearer "])
def test_empty_key_is_no_key(value: str) -> None:
    assert _tenant(authorization=value) == DEFAULT_TENANT


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer sk-wrong"}, {"authorization": "Basic sk-master"}])
async def test_call_without_the_master_key_is_a_401(path: str, headers: dict[str, str]) -> None:
    script = Script()
    async with served(parts_of(script, access=LOCKED)) as port:
        reply = await ask(port, path, chat(), headers=headers)

    assert reply.status == 401
    assert reply.error["type"] == "authentication_error"
    assert reply.error["code"] == "invalid_api_key"
    assert b"sk-" not in reply.body
    assert script.calls == []


@pytest.mark.parametrize("headers", [{"authorization": "Bearer sk-master"}, {"x-api-key": "sk-master"}])
async def test_master_key_opens_calls_models_and_admin(headers: dict[str, str]) -> None:
    async with served(parts_of(access=LOCKED)) as port:
        call = await ask(port, CHAT, chat(), headers=headers)
        models = await ask(port, "/v1/models", method="GET", headers=headers)
        admin = await ask(port, "/admin/calls/x", method="GET", headers=headers)

    assert [call.status, models.status, admin.status] == [200, 200, 404]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/admin/calls/x", "/admin/nothing", "/admin"])
async def test_models_and_admin_are_closed_without_the_master_key(path: str) -> None:
    async with served(parts_of(access=LOCKED)) as port:
        reply = await ask(port, path, method="GET")

    assert reply.status == 401


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
async def test_probes_need_no_key(path: str) -> None:
    async with served(parts_of(access=LOCKED)) as port:
        reply = await ask(port, path, method="GET")

    assert reply.status == 200


PATHS = [("POST", CHAT), ("GET", "/admin/calls/x"), ("GET", "/metrics"), ("GET", "/health/live"), ("GET", "/docs")]


@pytest.mark.parametrize(("method", "path"), PATHS)
async def test_strange_host_is_a_403_everywhere(method: str, path: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, path, chat(), method=method, headers={"host": "rebound.example:4000"})

    assert (reply.status, reply.error["code"]) == (403, "host_not_allowed")


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "file://"])
async def test_strange_origin_is_a_403_everywhere(method: str, path: str, origin: str) -> None:
    async with served(parts_of()) as port:
        reply = await ask(port, path, chat(), method=method, headers={"origin": origin})

    assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:4000", None),
        ("LOCALHOST", "http://localhost:3000"),
        ("[::1]:4000", "http://[::1]:4000"),
        ("127.0.0.1", "http://127.0.0.1:4000"),
    ],
)
def test_own_hosts_and_pages_are_answered(host: str, origin: str | None) -> None:
    headers = {b"host": host.encode(), **({b"origin": origin.encode()} if origin else {})}

    Gatekeeper(OPEN).check_site(headers)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "localhost.", "::1", "127.0.0.1.", "[", ":"]
)
def test_host_that_is_not_listed_is_refused(host: str) -> None:
    with pytest.raises(Forbidden):
        Gatekeeper(OPEN).check_site({b"host": host.encode()})


def test_wildcards_allow_subdomains_or_everything_but_never_strange_origins() -> None:
    below = Gatekeeper(Access(tenant_key=Secret("k"), allowed_hosts=("*.lamina.example",)))
    everything = Gatekeeper(Access(tenant_key=Secret("k"), allowed_hosts=("*",)))

    below.check_site({b"host": b"eu.lamina.example"})
    everything.check_site({b"host": b"any.example", b"origin": b"https://any.example"})
    with pytest.raises(Forbidden):
        below.check_site({b"host": b"lamina.example.evil.example"})
    with pytest.raises(Forbidden):
        everything.check_site({b"host": b"any.example", b"origin": b"https://evil.example"})


async def test_tenants_reach_the_call() -> None:
    script = Script()
    async with served(parts_of(script)) as port:
        for key in ("a", "b", "a"):
            await ask(port, CHAT, chat(), headers={"authorization": f"Bearer {key}"})

    first, second, third = (call.tenant for call in script.calls)
    assert first == third != second
