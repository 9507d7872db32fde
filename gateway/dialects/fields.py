"""Checks of single fields. Each takes the field's name and value and raises `InvalidRequest` that names it.

What has no check passes through as it came, so a new field of an upstream never waits for a release of ours.
A null counts as not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestration.core.errors import InvalidRequest

FieldCheck = Callable[[str, Any], None]
MAX_STOPS = 16


def check_fields(fields: Mapping[str, Any], checks: Mapping[str, FieldCheck]) -> None:
    """Run the check of every field that has one.

    A field that is called as another one but for its case is refused: servers that read both alike would be sent what
    nothing here has looked at.
    """
    for name, value in fields.items():
        check = checks.get(name)
        if check is None:
            if (meant := name.casefold()) != name and meant in checks:
                raise _unknown(name, meant)
        elif value is not None:
            check(name, value)


def require(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field that must be there."""
    value = fields.get(name)
    if value is None:
        raise InvalidRequest(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    return value


def wrong_type(name: str, expected: str, value: Any) -> InvalidRequest:
    """Make the error for a value of another type."""
    return InvalidRequest(
        f"Invalid type for '{name}': expected {expected}, but got {_kind_of(value)} instead.",
        param=name,
        code="invalid_type",
    )


def wrong_value(name: str, expected: str, value: Any) -> InvalidRequest:
    """Make the error for a value of the right type that is out of bounds."""
    return InvalidRequest(
        f"Invalid value for '{name}': expected {expected}, but got {_quote(value)}.", param=name, code="invalid_value"
    )


def integer(minimum: int, maximum: int = 2**63 - 1) -> FieldCheck:
    """Accept whole numbers within bounds; true and false are none."""

    def check(name: str, value: Any) -> None:
        if type(value) is not int:
            raise wrong_type(name, "an integer", value)
        if not minimum <= value <= maximum:
            raise wrong_value(name, f"an integer from {minimum} to {maximum}", value)

    return check


def number(minimum: float, maximum: float) -> FieldCheck:
    """Accept numbers within bounds; true and false are none."""

    def check(name: str, value: Any) -> None:
        if type(value) not in (int, float):
            raise wrong_type(name, "a number", value)
        if not minimum <= value <= maximum:
            raise wrong_value(name, f"a number from {minimum:g} to {maximum:g}", value)

    return check


def boolean(name: str, value: Any) -> None:
    """Accept true and false."""
    if type(value) is not bool:
        raise wrong_type(name, "a boolean", value)


def string(name: str, value: Any) -> None:
    """Accept any string."""
    if type(value) is not str:
        raise wrong_type(name, "a string", value)


def filled_string(name: str, value: Any) -> None:
    """Accept strings that are not empty."""
    string(name, value)
    if not value:
        raise wrong_value(name, "a string that is not empty", value)


def json_object(name: str, value: Any) -> None:
    """Accept any JSON object."""
    if type(value) is not dict:
        raise wrong_type(name, "an object", value)


def array(name: str, value: Any) -> None:
    """Accept any JSON array."""
    if type(value) is not list:
        raise wrong_type(name, "an array", value)


def token_ids(name: str, value: Any) -> None:
    """Accept a list of token ids, whole numbers below 2**31; names the first item that is none."""
    array(name, value)
    if not all(type(token) is int and 0 <= token < 2**31 for token in value):
        is_id = integer(0, 2**31 - 1)
        for index, token in enumerate(value):
            is_id(f"{name}[{index}]", token)


def one_of(*words: str) -> FieldCheck:
    """Accept only these words."""

    def check(name: str, value: Any) -> None:
        string(name, value)
        if value not in words:
            raise wrong_value(name, "one of " + ", ".join(f"'{word}'" for word in words), value)

    return check


def model_name(name: str, value: Any) -> None:
    """Accept the name of a model, known here or not."""
    filled_string(name, value)
    if len(value) > 256:
        raise wrong_value(name, "a name of at most 256 characters", value)


def stop(name: str, value: Any) -> None:
    """Accept one stop string or a list of them, none empty: an empty one would stop everything at once."""
    if type(value) is str:
        filled_string(name, value)
        return
    if type(value) is not list:
        raise wrong_type(name, "a string or an array of strings", value)
    if len(value) > MAX_STOPS:
        raise wrong_value(name, f"at most {MAX_STOPS} stop strings", len(value))
    for index, item in enumerate(value):
        filled_string(f"{name}[{index}]", item)


def logit_bias(name: str, value: Any) -> None:
    """Accept biases from -100 to 100 by token id."""
    json_object(name, value)
    check = number(-100, 100)
    for token, bias in value.items():
        if not token.isdecimal():
            raise wrong_value(name, "token ids as keys", token)
        check(f"{name}.{token[:20]}", bias)


def stream_options(name: str, value: Any) -> None:
    """Accept options of a stream."""
    json_object(name, value)
    check_fields(value, {"include_usage": _within(name, boolean)})


def check_stream(fields: Mapping[str, Any]) -> None:
    """Refuse options of a stream where no stream was asked for."""
    if fields.get("stream_options") is not None and fields.get("stream") is not True:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is true.", param="stream_options"
        )


def includes_usage(fields: Mapping[str, Any]) -> bool:
    """Tell whether a stream's client asked for usage."""
    return bool((fields.get("stream_options") or {}).get("include_usage"))


SAMPLING: Mapping[str, FieldCheck] = {
    "model": model_name,
    "n": integer(1, 128),
    "max_tokens": integer(1),
    "temperature": number(0, 2),
    "top_p": number(0, 1),
    "top_k": integer(-1),
    "min_p": number(0, 1),
    "presence_penalty": number(-2, 2),
    "frequency_penalty": number(-2, 2),
    "seed": integer(-(2**63)),
    "stop": stop,
    "stream": boolean,
    "stream_options": stream_options,
    "logit_bias": logit_bias,
    "ignore_eos": boolean,
    "priority": integer(-(2**63)),
    "user": string,
}
"""What chat and completions share."""


def _unknown(name: str, meant: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unknown parameter: '{name[:64]}'. Did you mean '{meant}'?", param=name[:64], code="unsupported_parameter"
    )


def _within(outer: str, check: FieldCheck) -> FieldCheck:
    return lambda name, value: check(f"{outer}.{name}", value)


def _kind_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _quote(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value[:64]}'"
    return str(value)[:64]
