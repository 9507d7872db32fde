"""A model's chat template, rendered in a sandbox as the model's makers meant it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestration.core.errors import InvalidRequest


class ChatTemplate:
    """Render messages as the one text that the model was trained to go on from.

    A template is the model's own code: it runs in an immutable sandbox with what templates expect to find there
    (`raise_exception`, `strftime_now`, `tojson` without escapes, `break`, `generation` blocks).
    """

    def __init__(
        self, source: str, *, bos_token: str, eos_token: str, now: Callable[[], datetime] = datetime.now
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self._template = environment.from_string(source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt up to where the assistant speaks; `options` are the template's own switches.

        Raises `InvalidRequest` naming `messages` where the template refuses them.
        """
        names = {**(options or {}), **self._tokens, "messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            return self._template.render(names)
        except (TemplateError, TypeError, ValueError, LookupError) as exc:
            raise InvalidRequest(f"The model's chat template refuses these messages: {exc}", param="messages") from exc


class _GenerationBlock(Extension):
    """Read `{% generation %}...{% endgeneration %}`, which marks the answers for training, as what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, **options: Any) -> str:
    """Write JSON as templates expect it: letters as they are, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)
