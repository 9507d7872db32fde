"""Demand that an answer is JSON of a given schema: the settings' own, or the one that the request asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.json_text import parse_json
from validators.options import read, refuse_unknown
from validators.patterns import compiled

MAX_SCHEMA_CHARS = 100_000
MAX_KNOWN = 256
MAX_REFERENCES = 10_000
Schema = Mapping[str, Any]
Problem = Callable[[Any], str | None]
"""Say what is wrong with a value, without quoting it, or None."""


class JsonSchema:
    """Refuse an answer that is not JSON of the schema (draft 2020-12).

    Without a schema of its own it holds answers to the `response_format` that their requests ask for, and looks at no
    others. Patterns run in linear time, references lead nowhere but into the schema itself. `unevaluatedProperties`
    beside `patternProperties` is refused: the library's own way with these two backtracks.
    """

    name = "json_schema"
    version = "2"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset({Stage.OUTPUT})
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, schema: Schema | None = None) -> None:
        self._problem_of = lru_cache(MAX_KNOWN)(_compile)
        self._schema = None if schema is None else _written(schema)
        self._problem_of(self._schema or "{}")  # here, not at the first request: the library's import takes a second

    def applies(self, request: Request) -> bool:
        """Apply to every request, or to those that ask for a schema."""
        return self._schema is not None or _wanted(request) is not None

    async def check(self, text: str, context: Context) -> Verdict:
        """Parse the text and hold it to the schema, saying where it departs from it."""
        value, problem = parse_json(text)
        if problem is not None:
            return Verdict(Outcome.BLOCK, reason=problem)
        wanted = None if context.request is None else _wanted(context.request)
        if self._schema is None and wanted is None:
            return PASSED
        try:
            found = self._problem_of(self._schema or _written(wanted or {}))(value)
        except (ValueError, RecursionError) as exc:
            reason = f"the request's schema cannot be used: {exc}"
            return Verdict(Outcome.ERROR, reason=reason, is_requests_fault=self._schema is None)
        return PASSED if found is None else Verdict(Outcome.BLOCK, reason=f"it departs from its schema: {found}")


def create_json_schema(options: Options) -> JsonSchema:
    """Build the check from `schema`, if there is one; raises `ValueError` naming the option."""
    refuse_unknown(options, ("schema",))
    schema = read(options, "schema", dict)
    try:
        return JsonSchema(schema)
    except ValueError as exc:
        raise ValueError(f"schema: {exc}") from exc


def _wanted(request: Request) -> Schema | None:
    """Return the schema in `response_format` (OpenAI's shape), or None."""
    wanted = request.fields.get("response_format")
    inner = wanted.get("json_schema") if isinstance(wanted, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return schema if isinstance(schema, dict) else None


def _written(schema: Schema) -> str:
    return json.dumps(schema, sort_keys=True)


def _compile(written: str) -> Problem:
    """Build what judges values by a schema; raises `ValueError` for one that is none."""
    # 0.2 to 2 s of imports, by what else is installed, that only a gateway with this check pays, and at its start.
    import jsonschema
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if len(written) > MAX_SCHEMA_CHARS:
        raise ValueError(f"has {len(written)} characters; at most {MAX_SCHEMA_CHARS} are taken")
    schema = json.loads(written)
    base = jsonschema.Draft202012Validator
    steps, patterns = _Steps(base.VALIDATORS), _Patterns(base.VALIDATORS)
    own = {
        "pattern": patterns.pattern,
        "patternProperties": patterns.properties,
        "additionalProperties": patterns.additional,
        "$ref": steps.ref,
        "$dynamicRef": steps.dynamic,
    }
    kind = jsonschema.validators.extend(base, own)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as exc:
        raise ValueError(f"is no JSON schema: {exc.message[:200]}") from exc
    patterns.read(schema)
    judge = kind(schema, registry=Registry())

    def problem_of(value: Any) -> str | None:
        steps.num_taken = 0
        try:
            error = next(judge.iter_errors(value), None)
        except (Unresolvable, RecursionError) as exc:
            raise ValueError(f"a reference leads nowhere ({type(exc).__name__})") from exc
        return None if error is None else _told(error)

    return problem_of


class _Steps:
    """Count the references that are followed: few of them can ask for more steps than there is time in the world."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        self._keywords = keywords
        self.num_taken = 0

    def ref(self, *words: Any) -> Any:
        return self._follow("$ref", *words)

    def dynamic(self, *words: Any) -> Any:
        return self._follow("$dynamicRef", *words)

    def _follow(self, keyword: str, *words: Any) -> Any:
        self.num_taken += 1
        if self.num_taken > MAX_REFERENCES:
            raise ValueError(f"asks for more than {MAX_REFERENCES} references to be followed")
        return self._keywords[keyword](*words)


class _Patterns:
    """The keywords that look for a pattern, each built once and linear in the text: the library's own backtrack."""

    def __init__(self, keywords: Mapping[str, Any]) -> None:
        self._keywords = keywords
        self._engine_of = cache(compiled)

    def read(self, schema: Any) -> None:
        """Build a schema's patterns; raises `ValueError` for what cannot be done in linear time."""
        objects = list(_objects(schema))
        for one in objects:
            if isinstance(one.get("pattern"), str):
                self._engine_of(one["pattern"])
            if isinstance(one.get("patternProperties"), dict):
                for expression in one["patternProperties"]:
                    self._engine_of(expression)
        if all(any(name in one for one in objects) for name in ("patternProperties", "unevaluatedProperties")):
            raise ValueError("has unevaluatedProperties beside patternProperties; use additionalProperties")

    def pattern(self, _validator: Any, expression: str, instance: Any, _schema: Schema) -> Iterator[Any]:
        from jsonschema import ValidationError  # as in _compile

        if isinstance(instance, str) and not self._is_found(expression, instance):
            yield ValidationError("it does not match a pattern")

    def properties(self, validator: Any, patterns: Schema, instance: Any, _schema: Schema) -> Iterator[Any]:
        if not isinstance(instance, dict):
            return
        for expression, inner in patterns.items():
            for name, value in instance.items():
                if self._is_found(expression, name):
                    yield from validator.descend(value, inner, path=name, schema_path=expression)

    def additional(self, validator: Any, allowed: Any, instance: Any, schema: Schema) -> Any:
        """Leave to the library what no pattern names, and keep the patterns from it."""
        patterns = schema.get("patternProperties")
        if patterns and isinstance(instance, dict):
            known = {name for name in instance if any(self._is_found(one, name) for one in patterns)}
            instance = {name: value for name, value in instance.items() if name not in known}
            schema = {keyword: value for keyword, value in schema.items() if keyword != "patternProperties"}
        return self._keywords["additionalProperties"](validator, allowed, instance, schema)

    def _is_found(self, expression: str, text: str) -> bool:
        return self._engine_of(expression).search(text.encode("utf-8", "replace")) is not None


def _told(error: Any) -> str:
    """Say where a value fails and by which keyword: the schema's words and indices, and none of the answer's."""
    place = "$" + "".join(f"[{step}]" if isinstance(step, int) else ".*" for step in error.absolute_path)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return f"{place} lacks {', '.join(missing)}"
        case "type":
            return f"{place} is not of type {error.validator_value}"
        case keyword:
            return f"{place} fails '{keyword}'"


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Give every object in a schema, at any depth."""
    if isinstance(schema, dict):
        yield schema
    if isinstance(schema, dict | list):
        for inner in schema.values() if isinstance(schema, dict) else schema:
            yield from _objects(inner)
