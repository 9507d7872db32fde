"""Who decides: the plain cosine, the rules of two widespread libraries, and ours, all on the same vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from cache.examiner import Examiner
from cache.guard import Guard
from cache.policies.calibrated import CalibratedPolicy
from cache.policies.scorer import load_model
from cache.policies.static import StaticPolicy
from lab.bench.cache.pairs import Asked, Rule
from orchestration.core import Candidate

STATIC_BAR = 0.95
WRONG_TO_CALL_COST = 25.0
OURS = ("static", "calibrated")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A rule, the bar that its makers ship, and what both are."""

    rule: Rule
    default_bar: float
    about: str


def contestants(guard: Guard) -> Mapping[str, Contestant]:
    """List the rules by name."""
    return {
        "cosine": Contestant(lambda asked: asked.similarity, STATIC_BAR, "cosine alone"),
        "gptcache": Contestant(gptcache_score, 0.8 * 4.0, "4 - squared L2 distance, bar 0.8 of 4: cosine 0.60"),
        "redisvl": Contestant(lambda asked: -(1.0 - asked.similarity), -0.1, "cosine distance, bar 0.1: cosine 0.90"),
        "static": Contestant(static_rule(guard), STATIC_BAR, "the guard, then the cosine: the shipped default"),
        "calibrated": Contestant(
            calibrated_rule(guard), 1.0 - 1.0 / WRONG_TO_CALL_COST, "the guard, then P(correct) at a price of 25 calls"
        ),
    }


def gptcache_score(asked: Asked) -> float:
    """Return GPTCache's similarity of two unit vectors: its greatest distance, 4, less their squared L2 distance."""
    return 4.0 - (2.0 - 2.0 * asked.similarity)


def static_rule(guard: Guard) -> Rule:
    """Serve by the cosine what the guard lets pass."""
    examiner = Examiner(StaticPolicy(-1.0), guard)

    def score(asked: Asked) -> float | None:
        return None if _examined(examiner, asked).veto else asked.similarity

    return score


def calibrated_rule(guard: Guard) -> Rule:
    """Serve by P(correct) what the guard lets pass, as an entry without labels is judged."""
    policy = CalibratedPolicy(load_model(), wrong_to_call_cost=WRONG_TO_CALL_COST, floor=-1.0, safe_bar=-1.0)
    examiner = Examiner(policy, guard)

    def score(asked: Asked) -> float | None:
        judged = _examined(examiner, asked)
        return None if judged.veto else judged.p_correct

    return score


def shown_bar(name: str, bar: float) -> float | None:
    """Return a bar as a cosine or chance, None where nothing would be served."""
    if not math.isfinite(bar):
        return None
    match name:
        case "gptcache":
            return (bar - 2.0) / 2.0
        case "redisvl":
            return 1.0 + bar
        case _:
            return bar


def _examined(examiner: Examiner, asked: Asked) -> Candidate:
    return examiner.examine(Candidate("entry", asked.similarity), asked=examiner.read(asked.a), question=asked.b)
