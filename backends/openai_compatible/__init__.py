"""Any server that speaks OpenAI's API, as a backend."""

from backends.openai_compatible.backend import OpenAICompatibleBackend, Timeouts

__all__ = ["OpenAICompatibleBackend", "Timeouts"]
