"""The semantic cache's decision again: the choice among candidates, the guard's vetoes, and the odds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cache.decide import Decision, decide, decide_alias
from cache.examiner import NO_QUESTION
from cache.guard import GUARD_VERSION, Guard
from cache.partition import Question, last_text
from cache.policies.calibrated import RULE_VERSION, chance_of
from cache.policies.scorer import PooledModel
from gateway.replay.finding import Finding, Verdict, compared
from orchestration.core import CacheStatus, Candidate

Record = Mapping[str, Any]


class CacheReplay:
    """Decide again what the semantic cache decided; `model` is the pooled scorer of this version."""

    def __init__(self, *, guard: Guard, model: PooledModel) -> None:
        self._guard = guard
        self._model = model

    def findings(self, record: Record, *, questions: Mapping[str, str]) -> Iterator[Finding]:
        """Yield what became of each decision. `questions` holds the texts of the entries that are known, by id."""
        cache = record["cache"]
        if cache["threshold"] is None:
            return  # the semantic tier took no part
        candidates = [_candidate(one) for one in cache["candidates"]]
        yield _choice(record, candidates)
        for candidate in candidates:
            if candidate.inputs is not None:
                yield self._odds(cache, candidate)
        yield from self._vetoes(record, candidates, questions)
        if cache.get("is_alias"):
            yield self._alias(record, questions)

    def _alias(self, record: Record, questions: Mapping[str, str]) -> Finding:
        """Ask again whether the alias may be served: whether the guard and the request's floor let it."""
        cache = record["cache"]
        asked, question = last_user_text(record), questions.get(cache["entry"])
        if cache["guard_version"] not in (None, GUARD_VERSION):
            note = f"made by guard {cache['guard_version']}, this version has {GUARD_VERSION}"
            return Finding("alias", Verdict.UNKNOWN, cache["entry"], note=note)
        if asked is None or question is None:
            return Finding("alias", Verdict.REDACTED, cache["entry"], note="a question is not in the log")
        veto = None if cache["guard_version"] is None else self._guard(asked, question)
        alias = Candidate(cache["entry"], cache["similarity"], veto=veto.reason if veto else None)
        decision = decide_alias(Decision(None, None, ""), alias, floor=record["controls"]["threshold"])
        return compared("alias", recorded=cache["entry"], recomputed=decision.entry)

    def _odds(self, cache: Record, candidate: Candidate) -> Finding:
        ours = f"calibrated-{RULE_VERSION}/{self._model.version}"
        if cache["policy_version"] != ours:
            note = f"made by {cache['policy_version']}, this version has {ours}"
            return Finding("odds", Verdict.UNKNOWN, candidate.p_correct, note=note)
        assert candidate.inputs is not None, "the caller has looked"
        chance = chance_of(self._model, candidate.inputs)
        is_same = math.isclose(chance, candidate.p_correct or 0.0, rel_tol=1e-9, abs_tol=1e-12)
        return Finding("odds", Verdict.AGREES if is_same else Verdict.DIFFERS, candidate.p_correct, chance)

    def _vetoes(self, record: Record, candidates: list[Candidate], questions: Mapping[str, str]) -> Iterator[Finding]:
        version = record["cache"]["guard_version"]
        examined = [one for one in candidates if one.veto is not None or one.inputs is not None]
        if not record["cache"].get("is_alias"):  # what the guard says of those is looked at as they are
            examined += [one for one in candidates if one.entry == record["cache"]["entry"] and one not in examined]
        if version is None or not examined:
            return
        if version != GUARD_VERSION:
            yield Finding("guard", Verdict.UNKNOWN, note=f"made by guard {version}, this version has {GUARD_VERSION}")
            return
        asked = last_user_text(record)
        for candidate in examined:
            if candidate.veto == NO_QUESTION:
                yield Finding("guard", Verdict.UNKNOWN, candidate.veto, note="the entry was kept without its question")
                continue
            question = questions.get(candidate.entry)
            if asked is None or question is None:
                yield Finding("guard", Verdict.REDACTED, candidate.veto, note="the texts are not in the log")
                continue
            veto = self._guard.judge(self._guard.compare(self._guard.read(asked), self._guard.read(question)))
            yield compared("guard", recorded=candidate.veto, recomputed=veto.reason if veto else None)


def questions_in(records: Iterable[Record]) -> dict[str, str]:
    """Return the texts of the entries that these calls asked for, by the entry's id."""
    texts = {}
    for record in records:
        text, partition = last_user_text(record), record["cache"]["partition"]
        if text is not None and partition is not None:
            texts[Question(partition, text).entry] = text
    return texts


def last_user_text(record: Record) -> str | None:
    """Return the text that was looked up, None where the log does not hold it."""
    request = (record["content"] or {}).get("request") or {}
    return last_text(request.get("messages") or ())


def _choice(record: Record, candidates: list[Candidate]) -> Finding:
    cache, extra = record["cache"], record["extra"]
    reason = extra.get("semantic")
    if isinstance(reason, str) and reason not in _DECIDED:
        return compared("cache", recorded=reason, recomputed=reason, note="nothing was decided: the look-up failed")
    unusable = extra.get("semantic_unusable") or {}
    if any(key.startswith("redacted-key") for key in unusable):
        return Finding("cache", Verdict.REDACTED, note="which entries were unusable is not in the log")
    decision = decide(candidates, bar=cache["threshold"], unusable=unusable)
    if cache.get("is_alias"):
        alias = Candidate(cache["entry"], cache["similarity"])
        decision = decide_alias(decision, alias, floor=record["controls"]["threshold"])
    is_hit = cache["status"] == CacheStatus.SEMANTIC
    recorded = {"entry": cache["entry"] if is_hit else None, "reason": reason}
    recomputed = {"entry": decision.entry, "reason": decision.reason if isinstance(reason, str) else reason}
    return compared("cache", recorded=recorded, recomputed=recomputed)


_DECIDED = frozenset({"served", "no_candidates", "below_bar", "unusable", "vetoed", "unlikely", "alias"})


def _candidate(fields: Record) -> Candidate:
    inputs = fields.get("inputs")
    return Candidate(**{**fields, "inputs": tuple(inputs) if inputs is not None else None})
