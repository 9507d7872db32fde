"""A request's prompts as token ids, checked against the model's context."""

from __future__ import annotations

from typing import Any

from backends.local.capacity import Capacity
from backends.local.messages import read_messages
from backends.local.text import LocalText
from backends.rest import without_rest
from orchestration.core.errors import ContextTooLong, InvalidRequest
from orchestration.core.request import Kind, Request

_MAX_PROMPTS = 128


async def read_prompts(request: Request, *, text: LocalText, capacity: Capacity) -> list[list[int]]:
    """Return each prompt's token ids: a chat has one prompt, a completion one or a list.

    Each is at least one token long and leaves room for one more in the `capacity`. Raises
    `InvalidRequest` naming the field, and `ContextTooLong` with the counts.
    """
    if request.kind is Kind.CHAT:
        return [await _read_chat(request, text=text, capacity=capacity)]
    prompts = _split(request.fields.get("prompt"))
    return [await _read_prompt(prompt, text=text, capacity=capacity) for prompt in prompts]


def field_of(kind: Kind) -> str:
    """Name the field that the prompt of a call comes from."""
    return "messages" if kind is Kind.CHAT else "prompt"


async def _read_chat(request: Request, *, text: LocalText, capacity: Capacity) -> list[int]:
    fields = without_rest(request)
    messages = read_messages(fields.get("messages"))
    rendered = text.render_chat(messages, tools=_read_tools(fields), options=_read_template_options(fields))
    return await _encode(rendered, text=text, capacity=capacity, adds_special=False, param="messages")


def _read_tools(fields: Any) -> list[Any] | None:
    tools = fields.get("tools")
    if tools is None or fields.get("tool_choice") == "none":
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InvalidRequest("'tools' must be a list of objects.", param="tools")
    return tools or None


def _read_template_options(fields: Any) -> dict[str, Any]:
    options = fields.get("chat_template_kwargs") or {}
    if not isinstance(options, dict):
        raise InvalidRequest("'chat_template_kwargs' must be an object.", param="chat_template_kwargs")
    return options


def _split(prompt: Any) -> list[Any]:
    """Tell one prompt from a list of them: a list of ids is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequest("'prompt' must be a text, a list of texts, or token ids.", param="prompt")
    prompts = [prompt] if all(type(item) is int for item in prompt) else prompt
    if len(prompts) > _MAX_PROMPTS:
        raise InvalidRequest(f"'prompt' may hold up to {_MAX_PROMPTS} prompts, not {len(prompts)}.", param="prompt")
    return prompts


async def _read_prompt(prompt: Any, *, text: LocalText, capacity: Capacity) -> list[int]:
    if isinstance(prompt, str):
        return await _encode(prompt, text=text, capacity=capacity, adds_special=True, param="prompt")
    if not isinstance(prompt, list) or not all(type(item) is int for item in prompt):
        raise InvalidRequest("Each prompt must be a text or a list of token ids.", param="prompt")
    if not all(0 <= token_id < text.vocab_size for token_id in prompt):
        raise InvalidRequest(f"Token ids go from 0 to {text.vocab_size - 1} for this model.", param="prompt")
    return _check_length(prompt, capacity=capacity, param="prompt")


async def _encode(text_in: str, *, text: LocalText, capacity: Capacity, adds_special: bool, param: str) -> list[int]:
    at_least = text.min_tokens(text_in)
    if at_least >= capacity.tokens:  # known without tokenizing megabytes
        raise _too_long(f"at least {at_least}", capacity=capacity, param=param)
    try:
        token_ids = await text.encode(text_in, adds_special=adds_special)
    except InvalidRequest as exc:
        raise InvalidRequest(exc.message, param=param) from exc
    return _check_length(token_ids, capacity=capacity, param=param)


def _check_length(token_ids: list[int], *, capacity: Capacity, param: str) -> list[int]:
    if not token_ids:
        raise InvalidRequest(f"'{param}' is empty: there is nothing to go on from.", param=param)
    if len(token_ids) >= capacity.tokens:
        raise _too_long(str(len(token_ids)), capacity=capacity, param=param)
    return token_ids


def _too_long(num_tokens: str, *, capacity: Capacity, param: str) -> ContextTooLong:
    return ContextTooLong(
        f"{capacity.words}. However, your {param} resulted in {num_tokens} tokens. Please shorten it, and leave room "
        "for the answer.",
        param=param,
    )
