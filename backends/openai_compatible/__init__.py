"""Any server that speaks OpenAI's API, as a backend."""

from backends.openai_compatible.wire import build_openai_compatible

__all__ = ["build_openai_compatible"]
