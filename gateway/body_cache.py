"""The body's field `cache`, in which clients of LiteLLM's say what others say in `Cache-Control`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.dialects import fields as check
from gateway.headers import namespace_of
from orchestration.core import CacheControl, Controls, Request
from orchestration.core.errors import InvalidRequest

CACHE = "cache"
_KNOWN = ("no-cache", "no-store", "s-maxage", "s-max-age", "namespace", "use-cache")


def take_cache(request: Request, controls: Controls) -> tuple[Request, Controls]:
    """Take `cache` out of an OpenAI client's request, which no server knows, and do what it says.

    It is an object of LiteLLM's words, or false for neither looking nor keeping. Raises `InvalidRequest` that names
    what is wrong, or has no meaning here.
    """
    if CACHE not in request.fields or not request.dialect.startswith("openai."):
        return request, controls
    said = request.fields[CACHE]
    fields = {name: value for name, value in request.fields.items() if name != CACHE}
    told = Request(request.kind, request.dialect, fields, headers=request.headers)
    if said is None or said is True:
        return told, controls
    if said is False:
        return told, replace(controls, cache=replace(controls.cache, is_no_store=True))
    check.json_object(CACHE, said)
    return told, _with(controls, {name: value for name, value in said.items() if value is not None})


def _with(controls: Controls, said: dict[str, Any]) -> Controls:
    for name in said:
        if name not in _KNOWN:
            raise _unknown(name)
    for name in ("no-cache", "no-store", "use-cache"):
        check.boolean(f"{CACHE}.{name}", said.get(name, False))
    age_s = said.get("s-maxage", said.get("s-max-age"))
    if age_s is not None:
        check.number(0, 2**31)(f"{CACHE}.s-maxage", age_s)
    before = controls.cache
    cache = CacheControl(
        is_no_cache=before.is_no_cache or said.get("no-cache", False),
        is_no_store=before.is_no_store or said.get("no-store", False) or said.get("use-cache") is False,
        is_only_if_cached=before.is_only_if_cached,
        max_age_s=before.max_age_s if age_s is None else age_s,
    )
    namespace = said.get("namespace")
    if namespace is None:
        return replace(controls, cache=cache)
    check.string(f"{CACHE}.namespace", namespace)
    return replace(controls, cache=cache, namespace=namespace_of(namespace, name=f"{CACHE}.namespace"))


def _unknown(name: str) -> InvalidRequest:
    place = f"{CACHE}.{name[:64]}"
    message = f"'{place}' has no meaning here; known are: {', '.join(_KNOWN)}."
    if name == "ttl":
        message = f"'{place}' has no meaning here: answers are kept as the settings say; 's-maxage' bounds their age."
    return InvalidRequest(message, param=place, code="unsupported_parameter")
