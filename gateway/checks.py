"""From the settings' checks to the rules of both stages, and what the log masks because of them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gateway.limits.key_book import KeyBook
from gateway.refusals import SettingsError
from gateway.settings import CheckSettings, Settings
from gateway.settings.tree import AnswerJudgeSettings, ScopeSettings
from orchestration.core import Call
from validators.guardrails_client import GuardrailsClient
from validators.judge import JudgeRule
from validators.patterns import Pattern
from validators.policy import Rule
from validators.registry import (
    READS_REQUEST,
    CheckSpec,
    build_checks,
    guardrails_specs,
    hash_of,
    identity,
    parse_specs,
    policy_hash,
)
from validators.scope import Caller, CallerOf, read_scope
from validators.secrets import SHAPES, TAIL

MASK = "[secret removed]"
_SHORTEST_SECRET = 12
"""No shape matches less; the shortest needs 15 characters."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The checks in force: a stage whose layer was cut from `layers` has none."""

    input: tuple[CheckSpec, ...]
    output: tuple[CheckSpec, ...]

    @property
    def policy(self) -> str:
        """Hash everything that decides what the checks let through."""
        return policy_hash(self.input, self.output)

    def policy_of(self, caller_of: CallerOf) -> Callable[[Call], str]:
        """Return what hashes the checks that stand for a call: answers are shared only among calls of equal checks."""
        scopes = [read_scope(spec.only_for) for spec in (*self.input, *self.output)]
        inputs, outputs = ([identity(spec) for spec in specs] for specs in (self.input, self.output))
        split = len(inputs)

        @functools.lru_cache(maxsize=1024)
        def hashed(standing: tuple[bool, ...]) -> str:
            of_outputs = list(itertools.compress(outputs, standing[split:]))
            return hash_of(list(itertools.compress(inputs, standing[:split])), of_outputs)

        if all(scope.is_everything for scope in scopes):
            policy = hashed((True,) * len(scopes))
            return lambda _call: policy
        return lambda call: hashed(tuple(scope.holds(call, caller_of) for scope in scopes))

    @property
    def worker_checks(self) -> list[dict[str, Any]]:
        """List what the guardrails worker is to run; empty where none is needed."""
        return guardrails_specs(self.input, self.output)

    @property
    def finds_secrets(self) -> bool:
        """Tell whether texts may hold secrets that the checks take out."""
        return any(spec.check == "secrets" for spec in (*self.input, *self.output))

    def rules(self, stage: Literal["input", "output"], worker: GuardrailsClient) -> tuple[Rule, ...]:
        """Build one stage's rules; raises `SettingsError` naming the field."""
        specs = self.input if stage == "input" else self.output
        try:
            return build_checks(specs, stage=stage, worker=worker)
        except ValueError as exc:
            raise SettingsError(str(exc)) from exc

    def hit_rules(self, worker: GuardrailsClient) -> tuple[Rule, ...]:
        """Build the rules by which the answer to a similar question is checked once more, against this one."""
        return build_checks(
            [spec for spec in self.output if spec.check in READS_REQUEST], stage="output", worker=worker
        )


def plan_checks(settings: Settings) -> CheckPlan:
    """Read the checks of the settings and build them once, so that what is wrong is told at start.

    Raises `SettingsError` naming the field.
    """
    plan = CheckPlan(
        input=_specs(settings, settings.validators.input, "input"),
        output=_specs(settings, settings.validators.output, "output"),
    )
    nobody = GuardrailsClient(Path("guard.sock"))  # connects at its first check, of which there is none
    for stage in ("input", "output"):
        plan.rules(stage, nobody)
    judge_rules(settings)
    return plan


def caller_of(book: KeyBook) -> CallerOf:
    """Return what finds the key behind a tenant."""

    def find(tenant: str) -> Caller | None:
        key = book.by_id(tenant)
        return None if key is None else Caller(name=key.name, team=key.team)

    return find


def secrets_mask() -> Callable[[str], str]:
    """Return what takes out of a text everything that looks like a secret key.

    The log stands outside the checks, so it sees what they have not rewritten yet.
    """
    pattern = Pattern("|".join(f"(?:{shape.expression})" for shape in SHAPES), tail=TAIL)

    def mask(text: str) -> str:
        if len(text) < _SHORTEST_SECRET:  # roles, models' names
            return text
        text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be searched
        kept, last = [], 0
        for start, end, is_tail in pattern.find(text):
            kept += [text[last:start], "" if is_tail else MASK]
            last = end
        return "".join([*kept, text[last:]]) if kept else text

    return mask


def judge_rules(settings: Settings) -> tuple[JudgeRule, ...]:
    """Read what is to be judged off the path; raises `SettingsError` naming the field."""
    return tuple(
        _judge_rule(judge, f"validators.judge[{index}]") for index, judge in enumerate(settings.validators.judge)
    )


def _judge_rule(judge: AnswerJudgeSettings, where: str) -> JudgeRule:
    try:
        scope = read_scope(_scope_row(judge.only_for))
    except ValueError as exc:
        raise SettingsError(f"{where}.only_for.{exc}") from exc
    return JudgeRule(name=judge.name, model=judge.model, question=judge.question, share=judge.share, scope=scope)


def _specs(
    settings: Settings, checks: tuple[CheckSettings, ...], stage: Literal["input", "output"]
) -> tuple[CheckSpec, ...]:
    if f"{stage}_checks" not in settings.layers:
        return ()
    try:
        return parse_specs([_row(check) for check in checks], stage=stage)
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc


def _row(check: CheckSettings) -> dict[str, Any]:
    return {**check.model_dump(), "only_for": _scope_row(check.only_for)}


def _scope_row(scope: ScopeSettings | None) -> dict[str, list[str]] | None:
    return None if scope is None else {name: list(names) for name, names in scope if names is not None}
