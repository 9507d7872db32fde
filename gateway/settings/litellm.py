"""LiteLLM's configuration read as ours: what has a clear meaning here is taken over, nothing is dropped in silence."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from gateway.refusals import SettingsError
from gateway.settings.litellm_models import backend_of
from gateway.settings.litellm_values import Reader, Remarks, redis_url

SECTIONS = ("model_list", "litellm_settings", "router_settings", "general_settings", "environment_variables")

_STRATEGIES = {
    "simple-shuffle": "weighted",
    "least-busy": "least_connections",
    "latency-based-routing": "latency",
    "cost-based-routing": "cost",
}
_OWN_COOLDOWNS = "cool-downs follow from what a backend answers"
_OWN_LOG = "every call is in Lamina's own log, and in MLflow where that is on"
_UNUSED: Mapping[str, str] = {
    "model_info.id": "a backend is named by its type and address",
    "model_info.mode": "what a model answers follows from its backends",
    "model_info.base_model": "prices are stated",
    "model_info.description": "models have no description here",
    "litellm_settings.set_verbose": _OWN_LOG,
    "litellm_settings.json_logs": _OWN_LOG,
    "litellm_settings.callbacks": _OWN_LOG,
    "litellm_settings.success_callback": _OWN_LOG,
    "litellm_settings.failure_callback": _OWN_LOG,
    "litellm_settings.telemetry": "there is none",
    "litellm_settings.allowed_fails": _OWN_COOLDOWNS,
    "litellm_settings.cooldown_time": _OWN_COOLDOWNS,
    "router_settings.allowed_fails": _OWN_COOLDOWNS,
    "router_settings.cooldown_time": _OWN_COOLDOWNS,
    "router_settings.enable_pre_call_checks": "a prompt that is too long is the backend's to refuse",
    "router_settings.routing_strategy_args": "strategies have no arguments here",
    "general_settings.database_url": "it holds another program's tables; name a database of Lamina's in database.url",
    "general_settings.store_model_in_db": "models are in the file",
    "general_settings.alerting": _OWN_LOG,
    "general_settings.proxy_batch_write_at": _OWN_LOG,
    "general_settings.database_connection_pool_limit": "the log's writer has one connection",
}
"""What is left aside, with the reason: each is reported by its path."""


def translate(raw: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the file in our shape, and a remark for each key that was left aside.

    Sections of ours may stand beside LiteLLM's. Raises `SettingsError` by path for a key that neither has a meaning
    here nor is harmless to leave aside.
    """
    ours = {name: value for name, value in raw.items() if name not in SECTIONS}
    if len(ours) == len(raw):
        return ours, ()
    if "models" in ours:
        raise SettingsError("model_list: there are models too; keep one of them")
    return _Translation(raw, ours).run()


class _Translation:
    """One file on its way; `ours` grows section by section."""

    def __init__(self, raw: Mapping[str, Any], ours: dict[str, Any]) -> None:
        self._ours = ours
        self._remarks = Remarks(_UNUSED)
        variables = raw.get("environment_variables") or {}
        self._model_list = raw.get("model_list", ())
        self._litellm = self._reader("litellm_settings", raw, variables)
        self._router = self._reader("router_settings", raw, variables)
        self._general = self._reader("general_settings", raw, variables)
        self._variables = variables
        self._models: dict[str, dict[str, Any]] = {}

    def run(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        if self._model_list != () and (not isinstance(self._model_list, list) or not self._model_list):
            raise SettingsError("model_list: is a list of at least one {model_name, litellm_params}")
        retries = self._router.take("num_retries", self._litellm.take("num_retries"))
        timeout = self._router.take("timeout", self._litellm.take("request_timeout"))
        drops = self._litellm.take("drop_params") is True
        for place, entry in enumerate(self._model_list):
            self._add(Reader(entry, f"model_list[{place}]", self._variables, self._remarks), timeout, drops=drops)
        self._shape(retries)
        self._fall_back()
        self._alias()
        self._keys_and_stores()
        for reader in (self._litellm, self._router, self._general):
            reader.finish()
        if self._models:
            self._ours["models"] = list(self._models.values())
        return self._ours, tuple(self._remarks.made)

    def _reader(self, name: str, raw: Mapping[str, Any], variables: Mapping[str, Any]) -> Reader:
        return Reader(raw.get(name) or {}, name, variables, self._remarks)

    def _add(self, entry: Reader, timeout: Any, *, drops: bool) -> None:
        """Add one entry as a backend of the model that it names."""
        name = entry.take("model_name")
        if not isinstance(name, str) or not name or "*" in name:
            raise SettingsError(f"{entry.path}.model_name: '{name}' is no name of one model")
        params, info = entry.inner("litellm_params"), entry.inner("model_info")
        backend = backend_of(str(params.take("model", "")), params.take("api_base"), path=f"{params.path}.model")
        own_timeouts = {"total": params.take("timeout", timeout), "first_token": params.take("stream_timeout")}
        timeouts = {key: value for key, value in own_timeouts.items() if value is not None}
        rates = [params.take(rate) for rate in ("weight", "rpm", "tpm")]
        weight = next((rate for rate in rates if rate is not None), None)
        if rates[0] is None and weight is not None:
            self._remarks.add(f"{params.path}.rpm", "weighs this backend against the model's others, and limits nobody")
        key, price = params.take("api_key"), _price(params, info)
        stated = {"api_key": key, "timeout_s": timeouts, "weight": weight, "price": price}
        backend.update({name: value for name, value in stated.items() if value})
        if params.take("drop_params", drops) is True and "provider" in backend:
            backend["drop_params"] = True
        model = self._models.setdefault(name, {"id": name, "backends": []})
        model["backends"].append(backend)
        longest = info.take("max_output_tokens", info.take("max_tokens"))
        if longest is not None:
            model["max_tokens"] = longest
        for reader in (params, info, entry):
            reader.finish()

    def _shape(self, retries: Any) -> None:
        """Give every model the strategy and the retries of the whole."""
        name = self._router.take("routing_strategy", "simple-shuffle")
        strategy = _STRATEGIES.get(name)
        if strategy is None:
            close = difflib.get_close_matches(str(name), _STRATEGIES, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"read here: {', '.join(_STRATEGIES)}"
            raise SettingsError(f"router_settings.routing_strategy: '{name}' has no counterpart here; {hint}")
        for model in self._models.values():
            model["strategy"] = strategy
            if strategy == "cost":
                for backend in model["backends"]:
                    backend.pop("weight", None)
            if retries is not None:
                model["retries"] = retries

    def _fall_back(self) -> None:
        default = self._litellm.take("default_fallbacks")
        pairs = [*(self._litellm.take("fallbacks") or ()), *(self._router.take("fallbacks") or ())]
        for pair in pairs:
            for name, others in pair.items():
                if name not in self._models:
                    raise SettingsError(f"fallbacks: '{name}' is no model_name of the model_list")
                self._models[name]["fallbacks"] = list(others)
        for name, model in self._models.items():
            others = [other for other in default or () if other != name]
            if others and "fallbacks" not in model:
                model["fallbacks"] = others

    def _alias(self) -> None:
        for alias, name in (self._router.take("model_group_alias") or {}).items():
            if name not in self._models:
                raise SettingsError(f"router_settings.model_group_alias.{alias}: '{name}' is no model_name here")
            self._models[alias] = {**self._models[name], "id": alias}

    def _keys_and_stores(self) -> None:
        self._put("keys", "master", self._general.take("master_key"), "general_settings.master_key")
        self._put("redis", "url", redis_url(self._router, "redis_"), "router_settings.redis_host")
        is_on = self._litellm.take("cache")
        params = self._litellm.inner("cache_params")
        kind = params.take("type", "local")
        if is_on is False:
            self._put("cache", "exact", {"enabled": False}, "litellm_settings.cache")
            self._put("cache", "semantic", {"enabled": False}, "litellm_settings.cache")
        elif is_on is True:
            self._cache(params, str(kind))
        params.finish()

    def _cache(self, params: Reader, kind: str) -> None:
        if kind not in ("local", "redis", "redis-semantic"):
            raise SettingsError(f"{params.path}.type: '{kind}' is no cache here; read: local, redis, redis-semantic")
        self._put("redis", "url", redis_url(params), f"{params.path}.host")
        ttl_s, bar = params.take("ttl"), params.take("similarity_threshold")
        exact = {"enabled": True} if ttl_s is None else {"enabled": True, "ttl_s": ttl_s}
        semantic: dict[str, Any] = {"enabled": kind == "redis-semantic"}
        if kind == "redis-semantic" and bar is not None:
            semantic["threshold"] = bar
        self._put("cache", "exact", exact, params.path)
        self._put("cache", "semantic", semantic, params.path)

    def _put(self, section: str, key: str, value: Any, source: str) -> None:
        """Set a key of ours; raises `SettingsError` where the file has it already."""
        if value is None:
            return
        known = self._ours.setdefault(section, {})
        if key in known and known[key] != value:
            raise SettingsError(f"{source}: {section}.{key} is set too; keep one of them")
        known[key] = value


def _price(params: Reader, info: Reader) -> dict[str, float]:
    """Turn dollars a token into dollars a million."""
    names = {
        "input_per_1m": "input_cost_per_token",
        "output_per_1m": "output_cost_per_token",
        "cached_input_per_1m": "cache_read_input_token_cost",
    }
    found = {ours: params.take(theirs, info.take(theirs)) for ours, theirs in names.items()}
    # Twelve digits are more than any price has, and fewer than binary fractions show.
    return {name: round(float(value) * 1e6, 12) for name, value in found.items() if value is not None}
