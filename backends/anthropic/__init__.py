"""Any server that speaks Anthropic's messages API, as a backend."""

from backends.anthropic.wire import build_anthropic

__all__ = ["build_anthropic"]
