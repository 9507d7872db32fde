"""LiteLLM's names of models and servers: `openai/gpt-x` becomes a backend of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.refusals import SettingsError


@dataclass(frozen=True, slots=True)
class Origin:
    """What a prefix stands for: a backend's type, the provider in our table, and the address where none is given.

    `suffix` is what LiteLLM adds to `api_base` by itself.
    """

    type: str = "openai_compatible"
    provider: str | None = None
    base_url: str | None = None
    suffix: str = ""


ORIGINS: Mapping[str, Origin] = {
    "openai": Origin(provider="openai"),
    "text-completion-openai": Origin(provider="openai"),
    "custom_openai": Origin(),
    "anthropic": Origin(type="anthropic", base_url="https://api.anthropic.com"),
    "hosted_vllm": Origin(provider="vllm"),
    "ollama": Origin(provider="ollama", suffix="/v1"),
    "ollama_chat": Origin(provider="ollama", suffix="/v1"),
    "huggingface": Origin(provider="tgi", suffix="/v1"),
    "nvidia_nim": Origin(provider="nim", base_url="https://integrate.api.nvidia.com/v1"),
    "llamafile": Origin(provider="llama_cpp"),
    "lm_studio": Origin(),
    "infinity": Origin(),
    "litellm_proxy": Origin(),
    "jina_ai": Origin(provider="jina"),
    "cohere": Origin(provider="cohere"),
    "groq": Origin(base_url="https://api.groq.com/openai/v1"),
    "mistral": Origin(base_url="https://api.mistral.ai/v1"),
    "deepseek": Origin(base_url="https://api.deepseek.com/v1"),
    "xai": Origin(base_url="https://api.x.ai/v1"),
    "together_ai": Origin(base_url="https://api.together.xyz/v1"),
    "openrouter": Origin(base_url="https://openrouter.ai/api/v1"),
    "fireworks_ai": Origin(base_url="https://api.fireworks.ai/inference/v1"),
    "cerebras": Origin(base_url="https://api.cerebras.ai/v1"),
}
_BARE = {"gpt-": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "text-embedding-": "openai"}
_BARE_PREFIXES = {**_BARE, "claude-": "anthropic"}


def backend_of(model: str, api_base: str | None, *, path: str) -> dict[str, object]:
    """Return `type`, `provider`, `base_url` and `model` of a backend; raises `SettingsError` for an unknown prefix."""
    prefix, _, name = model.partition("/")
    if not name:
        prefix, name = next((own for start, own in _BARE_PREFIXES.items() if model.startswith(start)), ""), model
    origin = ORIGINS.get(prefix)
    if origin is None or "*" in model:
        known = ", ".join(f"{known}/" for known in ORIGINS)
        raise SettingsError(f"{path}: '{model}' is no model that can be read here; known: {known}NAME")
    if api_base is None:
        base_url, provider = origin.base_url, origin.provider
        if base_url is None and provider is None:
            raise SettingsError(f"{path}: '{model}' needs an api_base")
    else:
        base_url = api_base.rstrip("/").removesuffix(origin.suffix or "\0") + origin.suffix
        # openai/NAME with an address of one's own is any server that speaks OpenAI's API.
        is_openais = "//api.openai.com" in api_base
        provider = None if origin.provider == "openai" and not is_openais else origin.provider
    found = {"type": origin.type, "provider": provider, "base_url": base_url, "model": name}
    return {key: value for key, value in found.items() if value is not None}
