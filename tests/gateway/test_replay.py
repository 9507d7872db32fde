from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest

from cache.examiner import Examiner
from cache.guard import load_guard
from cache.memory_store import MemoryStore
from cache.policies.build import build_policy
from cache.policies.scorer import load_model
from cache.semantic import SemanticCache
from gateway.checks import plan_checks, secrets_mask
from gateway.replay import Finding, Replay, Verdict
from gateway.replay.cache_decision import CacheReplay, questions_in
from gateway.replay.checks_decision import ChecksReplay
from gateway.settings import Settings
from logging_layer.call_log import CallLog
from orchestration.core import Call, Handler, Kind, Request, Router, compose
from orchestration.core.balance import Strategy
from orchestration.core.chooser import Chooser
from orchestration.core.complexity import ModelChoice
from orchestration.core.route import Route
from orchestration.core.standing import Standings
from tests.cache.judge import test_desk as judging
from tests.cache.judge.test_desk import World
from tests.cache.scripted import PARIS, a_call
from tests.cache.test_semantic import COSINES, TableIndex
from tests.logging_layer.samples import Kept
from tests.orchestration.scripts import Scripted, answer
from validators.input_checks import InputChecks
from validators.policy import Rule
from validators.registry import build_checks

FRANCE, WHATS, GERMANY = "capital of France?", "what's the capital of France?", "capital of Germany?"
SECRET = "my key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJ"


def rules() -> tuple[Rule, ...]:
    """Build the default input checks."""
    from validators.guardrails_client import GuardrailsClient

    return build_checks(plan_checks(Settings()).input, stage="input", worker=GuardrailsClient(None))  # type: ignore[arg-type]  # never asked


def pipeline(spool: Kept, *, policy: str = "static", content: str = "full", strategy: Strategy) -> Handler:
    """Compose the layers that decide, over two backends."""
    examiner = Examiner(build_policy(policy, threshold=0.5, wrong_to_call_cost=25), load_guard())
    semantic = SemanticCache(
        TableIndex(),
        MemoryStore(),
        route_of=lambda alias: "route",
        policy_of=lambda call: "policy",
        examiner=examiner,
        deadline_ms=20_000,
    )
    backends = tuple(Scripted(answer(), name=name) for name in ("one", "two"))
    routes = {
        name: Route(model=name, kinds=frozenset({Kind.CHAT}), backends=backends, strategy=strategy)
        for name in ("m", "small", "large")
    }
    log = CallLog(spool, content=content, worker="w", mask=secrets_mask())
    choice = Chooser({"auto": ModelChoice("small", "small", "large")})
    router = Router(routes, standings=Standings(), rng=random.Random(7))
    return compose([log, InputChecks(rules()), choice, semantic], router)


def replayer() -> Replay:
    """Build what `lamina replay` builds."""
    return Replay(CacheReplay(guard=load_guard(), model=load_model()), ChecksReplay(rules()))


async def run(handler: Handler, *texts: str, model: str = "m") -> None:
    """Send one call after the other."""
    for number, text in enumerate(texts):
        fields = {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0}
        request = Request(kind=Kind.CHAT, dialect="openai.chat", fields=fields)
        call = Call(f"c{number}", "r", "t", request, 0.0, 0.0)
        async for _ in handler(call):
            pass
        for _ in range(8):  # the answer is inserted by a task of the cache's
            await asyncio.sleep(0)


async def replayed(spool: Kept) -> tuple[list[dict[str, Any]], list[list[Finding]]]:
    """Replay every record from its JSON."""
    records = [json.loads(record.to_json()) for record in spool.records]
    texts = questions_in(records)
    return records, [await replayer().of(record, questions=texts) for record in records]


@pytest.mark.parametrize("policy", ["static", "calibrated"])
@pytest.mark.parametrize("strategy", Strategy)
async def test_every_decision_comes_out_as_it_was_recorded(policy: str, strategy: Strategy) -> None:
    spool = Kept()
    handler = pipeline(spool, policy=policy, strategy=strategy)
    await run(handler, FRANCE, WHATS, GERMANY, FRANCE)
    await run(handler, FRANCE, WHATS, model="auto")

    records, findings = await replayed(spool)

    said = [finding for of_call in findings for finding in of_call]
    assert {finding.verdict for finding in said} == {Verdict.AGREES}
    assert {finding.part for finding in said} >= {"input_checks", "cache", "guard", "routing", "complexity"}
    assert ("odds" in {finding.part for finding in said}) == (policy == "calibrated")
    assert records[1]["cache"]["status"] == "semantic" or policy == "calibrated"
    is_near = COSINES[frozenset({FRANCE, GERMANY})] >= records[2]["cache"]["threshold"]
    assert (records[2]["cache"]["candidates"][0]["veto"] is not None) == is_near


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        (("cache", "threshold"), 0.999, "cache"),
        (("cache", "entry"), "another", "cache"),
        (("cache", "candidates", 0, "veto"), "numbers", "guard"),
        (("extra", "routing", "orders", 0, "ready"), [1], "routing"),
        (("checks", 0, "verdict"), "block", "input_checks"),
    ],
)
async def test_a_record_that_was_changed_differs(path: tuple[str | int, ...], value: Any, part: str) -> None:
    spool = Kept()
    await run(pipeline(spool, strategy=Strategy.ROUND_ROBIN), FRANCE, WHATS)
    records = [json.loads(record.to_json()) for record in spool.records]
    texts = questions_in(records)
    place = records[0] if part == "routing" else records[1]
    *way, last = path
    for step in way:
        place = place[step]
    place[last] = value

    findings = [finding for record in records for finding in await replayer().of(record, questions=texts)]

    assert part in {finding.part for finding in findings if finding.verdict is Verdict.DIFFERS}


async def test_what_was_redacted_is_not_said_to_agree() -> None:
    spool = Kept()
    await run(pipeline(spool, content="redacted", strategy=Strategy.PREFIX), FRANCE, WHATS)

    _, findings = await replayed(spool)

    by_part = {finding.part: finding.verdict for finding in findings[1]}
    assert by_part["guard"] is Verdict.REDACTED
    assert by_part["input_checks"] is Verdict.REDACTED
    assert by_part["cache"] is Verdict.AGREES
    assert next(finding for finding in findings[0] if finding.part == "routing").verdict is Verdict.REDACTED


async def test_a_masked_secret_leaves_nothing_to_check_again() -> None:
    spool = Kept()
    await run(pipeline(spool, strategy=Strategy.ROUND_ROBIN), SECRET)

    records, findings = await replayed(spool)

    assert "sk-proj" not in json.dumps(records[0])
    assert next(one for one in findings[0] if one.part == "input_checks").verdict is Verdict.REDACTED


async def an_alias(spool: Kept) -> None:
    """Have a near miss approved, and served when it is asked again."""
    world = World()
    await world.near_miss()
    await world.judged()
    log = CallLog(spool, content="full", worker="w")
    world.core.events = PARIS
    for id, text in (("c3", judging.FRANCE), ("c4", judging.NEAR)):
        call = a_call(id, messages=[{"role": "user", "content": text}], temperature=0)
        async for _ in compose([log, world.cache], world.core)(call):
            pass


async def test_an_alias_comes_out_as_it_was_served() -> None:
    spool = Kept()
    await an_alias(spool)

    records, findings = await replayed(spool)

    assert (records[1]["cache"]["status"], records[1]["cache"]["is_alias"]) == ("semantic", True)
    assert {(one.part, one.verdict) for one in findings[1]} == {("cache", Verdict.AGREES), ("alias", Verdict.AGREES)}


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        (("controls", "threshold"), 0.95, "cache"),
        (("cache", "threshold"), 0.85, "cache"),
        (("content", "request", "messages", 0, "content"), "what is the capital of Germany?", "alias"),
    ],
)
async def test_an_alias_that_was_not_to_be_served_differs(path: tuple[str | int, ...], value: Any, part: str) -> None:
    spool = Kept()
    await an_alias(spool)
    records = [json.loads(record.to_json()) for record in spool.records]
    *way, last = path
    place = records[1]
    for step in way:
        place = place[step]
    place[last] = value

    findings = await replayer().of(records[1], questions=questions_in(records))

    assert part in {finding.part for finding in findings if finding.verdict is Verdict.DIFFERS}


async def test_odds_of_another_versions_scorer_are_unknown() -> None:
    spool = Kept()
    await run(pipeline(spool, policy="calibrated", strategy=Strategy.ROUND_ROBIN), FRANCE, WHATS)
    records = [json.loads(record.to_json()) for record in spool.records]
    records[1]["cache"]["policy_version"] = "calibrated-0/older"

    findings = await replayer().of(records[1], questions=questions_in(records))

    assert {finding.verdict for finding in findings if finding.part == "odds"} == {Verdict.UNKNOWN}
