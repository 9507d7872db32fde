"""From settings to rules: which check a name means, what its options are, and what may be combined."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from validators.banned_words import create_banned_words
from validators.breaker import OPEN_S, OPENS_AFTER, Bounds, Guarded
from validators.check import Check, Cost, Options, Stage, Subject
from validators.distribution import create_distribution
from validators.grounding import create_grounding
from validators.guardrails_client import GuardrailsCheck, GuardrailsClient
from validators.guardrails_table import KNOWN, borrowed, checked_options
from validators.json_schema import create_json_schema
from validators.json_text import create_json
from validators.language import create_language
from validators.length import create_length
from validators.options import read
from validators.pii import create_pii
from validators.policy import Fail, Mode, OnFail, Rule
from validators.prompt_injection import create_prompt_injection
from validators.reask import MAX_REASKS
from validators.regex import create_regex
from validators.scope import Scope, read_scope
from validators.secrets import create_secrets
from validators.shadow import NORMALISATION
from validators.sql import create_sql
from validators.topics import create_competitors, create_topics
from validators.urls import create_urls

PIPELINE_VERSION = "2"
"""Part of the policy's hash: it changes when rules are put together or texts are gathered in another way."""

OWN: Mapping[str, Callable[[Options], Check]] = {
    "banned_words": create_banned_words,
    "competitors": create_competitors,
    "distribution": create_distribution,
    "grounding": create_grounding,
    "json": create_json,
    "json_schema": create_json_schema,
    "language": create_language,
    "length": create_length,
    "pii": create_pii,
    "prompt_injection": create_prompt_injection,
    "regex": create_regex,
    "secrets": create_secrets,
    "sql": create_sql,
    "topics": create_topics,
    "urls": create_urls,
}
READS_REQUEST = frozenset({"distribution", "grounding", "json_schema"})
"""Checks whose verdict on an answer depends on what was asked."""

BORROWED = "guardrails/"
TIMEOUT = "timeout_s"
DEFAULT_TIMEOUT_S = 2.0
MAX_TIMEOUT_S = 30.0
MARGIN_S = 0.5
"""What a check's own time limit is given to be told of before the deadline around it cuts in."""

Word = TypeVar("Word", OnFail, Mode, Fail)


@dataclass(frozen=True, slots=True)
class CheckSpec:
    """A check as the settings name it. `mode` None means: the lightest that keeps its promise.

    `only_for` says for which calls it stands (all, where it is None). One run may take `deadline_ms`; after
    `breaker_after` failures in a row it is left alone for `breaker_open_s`. With `on_fail: reask` the model is asked
    again `reasks` times.
    `options` are the check's own; for a `guardrails/...` check its constructor's, and `timeout_s`.
    """

    check: str
    on_fail: str = "block"
    mode: str | None = None
    fail: Literal["open", "closed"] = "closed"
    only_for: Mapping[str, Any] | None = None
    deadline_ms: float | None = None
    breaker_after: int = OPENS_AFTER
    breaker_open_s: float = OPEN_S
    reasks: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def parse_specs(rows: Sequence[Mapping[str, Any]], *, stage: Literal["input", "output"]) -> tuple[CheckSpec, ...]:
    """Read the rows of `validators.input` or `.output`; raises `ValueError` naming the row that names no check."""
    return tuple(_parse(row, f"validators.{stage}[{index}]") for index, row in enumerate(rows))


def build_checks(
    specs: Sequence[CheckSpec], *, stage: Literal["input", "output"], worker: GuardrailsClient | None
) -> tuple[Rule, ...]:
    """Build the rules of a stage, in order. Raises `ValueError` that names the field and what would be right.

    `worker` may be None where no spec names a `guardrails/...` check.
    """
    return tuple(_build(spec, Stage(stage), f"validators.{stage}[{index}]", worker) for index, spec in enumerate(specs))


def policy_hash(input_specs: Sequence[CheckSpec], output_specs: Sequence[CheckSpec]) -> str:
    """Hash everything that decides what the checks let through: their code, options, modes and actions."""
    return hash_of(*([identity(spec) for spec in specs] for specs in (input_specs, output_specs)))


def hash_of(inputs: Sequence[list[Any]], outputs: Sequence[list[Any]]) -> str:
    """Hash the checks of both stages, each by its `identity`."""
    whole = json.dumps([PIPELINE_VERSION, NORMALISATION, [inputs, outputs]], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()[:32]


def identity(spec: CheckSpec) -> list[Any]:
    """Name all of one check that decides what it lets through; builds the check, so this is for the start alone."""
    version = KNOWN[spec.check].code_version() if spec.check in KNOWN else _version(spec)
    return [spec.check, version, dict(spec.options), spec.mode, spec.on_fail, spec.fail, spec.only_for, spec.reasks]


def guardrails_specs(input_specs: Sequence[CheckSpec], output_specs: Sequence[CheckSpec]) -> list[dict[str, Any]]:
    """List the guardrails-ai checks, each once, as the worker's `--checks` takes them; empty: no worker is needed."""
    found: list[dict[str, Any]] = []
    for spec in (*input_specs, *output_specs):
        options = {name: value for name, value in spec.options.items() if name != TIMEOUT}
        row = {"check": spec.check, "options": options}
        if spec.check.startswith(BORROWED) and row not in found:
            found.append(row)
    return found


def _parse(row: Mapping[str, Any], where: str) -> CheckSpec:
    rest = dict(row)
    name = rest.pop("check", None)
    if not isinstance(name, str):
        raise ValueError(f"{where}.check: must name a check; known: {_known()}")
    common = {key: rest.pop(key) for key in _COMMON if key in rest}
    return CheckSpec(check=name, options=rest, **common)


_COMMON = ("on_fail", "mode", "fail", "only_for", "deadline_ms", "breaker_after", "breaker_open_s", "reasks")


def _build(spec: CheckSpec, stage: Stage, where: str, worker: GuardrailsClient | None) -> Rule:
    try:
        check = _create(spec, worker)
    except ValueError as exc:
        raise ValueError(f"{where}.{exc}") from exc
    if stage not in check.stages:
        allowed = ", ".join(sorted(check.stages))
        raise ValueError(f"{where}.check: {spec.check} is a check of the {allowed}, not of the {stage}")
    on_fail = _word(OnFail, spec.on_fail, f"{where}.on_fail")
    if on_fail is OnFail.REWRITE and stage not in check.rewrites:
        raise ValueError(f"{where}.on_fail: {spec.check} cannot rewrite the {stage}; use block or flag")
    if on_fail is OnFail.REASK and stage is Stage.INPUT:
        raise ValueError(f"{where}.on_fail: a request cannot be asked for again; use block, rewrite or flag")
    if not 1 <= spec.reasks <= MAX_REASKS:
        raise ValueError(f"{where}.reasks: must be from 1 to {MAX_REASKS}, not {spec.reasks}")
    return Rule(
        check=Guarded(check, bounds=_bounds(spec, where)),
        on_fail=on_fail,
        mode=_mode(spec, check, stage, on_fail, where),
        fail=_word(Fail, spec.fail, f"{where}.fail"),
        scope=_scope(spec, where),
        reasks=spec.reasks,
    )


def _bounds(spec: CheckSpec, where: str) -> Bounds:
    usual_ms = 1000.0 * (float(spec.options.get(TIMEOUT) or DEFAULT_TIMEOUT_S) + MARGIN_S)
    deadline_ms = usual_ms if spec.deadline_ms is None else spec.deadline_ms
    if not 0 < deadline_ms <= 1000.0 * (MAX_TIMEOUT_S + MARGIN_S):
        raise ValueError(
            f"{where}.deadline_ms: must be above 0 and at most {1000 * MAX_TIMEOUT_S:g}, not {deadline_ms:g}"
        )
    if spec.breaker_after < 1:
        raise ValueError(f"{where}.breaker_after: must be at least 1, not {spec.breaker_after}")
    if spec.breaker_open_s <= 0:
        raise ValueError(f"{where}.breaker_open_s: must be above 0, not {spec.breaker_open_s:g}")
    return Bounds(deadline_s=deadline_ms / 1000.0, opens_after=spec.breaker_after, open_s=spec.breaker_open_s)


def _scope(spec: CheckSpec, where: str) -> Scope:
    try:
        return read_scope(spec.only_for)
    except ValueError as exc:
        raise ValueError(f"{where}.only_for.{exc}") from exc


def _create(spec: CheckSpec, worker: GuardrailsClient | None) -> Check:
    if not spec.check.startswith(BORROWED):
        if spec.check not in OWN:
            raise ValueError(f"check: '{spec.check}' is not known; known: {_known()}")
        return OWN[spec.check](spec.options)
    borrowed(spec.check)
    options = dict(spec.options)
    timeout_s = read({TIMEOUT: options.pop(TIMEOUT, None)}, TIMEOUT, float, default=DEFAULT_TIMEOUT_S)
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise ValueError(f"{TIMEOUT}: must be above 0 and at most {MAX_TIMEOUT_S:g}, not {timeout_s:g}")
    checked_options(spec.check, options)
    if worker is None:
        raise ValueError(f"check: {spec.check} needs the guardrails worker, and none is set up")
    return GuardrailsCheck(spec.check, options, worker, timeout_s=timeout_s)


def _mode(spec: CheckSpec, check: Check, stage: Stage, on_fail: OnFail, where: str) -> Mode:
    if spec.mode is None:
        if on_fail is OnFail.FLAG:
            return Mode.OBSERVE
        if on_fail is OnFail.REASK:
            return Mode.HOLD
        is_bounded = check.longest_match is not None and check.subject is Subject.CONTENT
        return Mode.WINDOW if is_bounded and stage is Stage.OUTPUT else Mode.HOLD
    mode = _word(Mode, spec.mode, f"{where}.mode")
    if on_fail is OnFail.REASK and mode is not Mode.HOLD:
        raise ValueError(
            f"{where}.mode: an answer that may be asked for again is held whole; use hold, or leave it out"
        )
    if stage is Stage.INPUT and mode is not Mode.OBSERVE:
        raise ValueError(f"{where}.mode: {mode} is for streams; a request is always whole (leave it out, or: observe)")
    if mode is Mode.WINDOW and (check.longest_match is None or check.cost is Cost.WORKER):
        raise ValueError(f"{where}.mode: {spec.check} has no longest match, so no window is safe; use hold or observe")
    return mode


def _word(kind: type[Word], value: object, where: str) -> Word:
    for word in kind:
        if word == value:
            return word
    raise ValueError(f"{where}: must be one of {', '.join(kind)}, not {value!r}")


def _version(spec: CheckSpec) -> str:
    return OWN[spec.check](spec.options).version if spec.check in OWN else ""


def _known() -> str:
    return ", ".join(sorted([*OWN, *KNOWN]))
