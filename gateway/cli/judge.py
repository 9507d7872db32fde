"""`lamina judge check`: put labelled pairs to the judge of the settings, and keep what it made of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from backends.registry import BackendFactory
from gateway.deployments import node_name
from gateway.judge_check import SHIPPED, LabelledPair, examine, read_pairs
from gateway.judging import certificate_of, judge_of
from gateway.refusals import Refused
from gateway.route_hash import RouteHashes
from gateway.routing import build_routes, remote_options
from gateway.settings import Settings, load_settings, process_environment
from gateway.settings.tree import JudgeSettings
from gateway.supervisor.plan import database_url
from gateway.supervisor.state import STATE_FOLDER, StateFolder
from logging_layer.judge_checks import ChecksDown, JudgeCheck, JudgeChecks
from orchestration.core.standing import Standings


def run(*, pairs: Path | None, limit: int | None, json_path: Path | None, config: Path | None) -> int:
    """Check the judge; returns 1 where it did not pass. Raises `Refused` where there is none, or no pairs."""
    settings = load_settings(config, environment=process_environment())
    judge = settings.cache.semantic.judge
    if judge is None:
        raise Refused("cache.semantic.judge: is not set, so there is nothing to check; name a model there")
    rows = read_pairs(pairs or SHIPPED)[:limit]
    check = asyncio.run(_check(settings, judge, rows))
    if json_path is not None:
        json_path.write_text(json.dumps(asdict(check), indent=2) + "\n", encoding="utf-8")
    why = certificate_of(check).why_failed
    console = Console(highlight=False)
    console.print(
        f"{check.model}: {check.num_right} of {check.num_pairs} pairs right, {check.num_fooled} of {check.num_traps} "
        f"traps taken for the same, {check.num_failed} without an opinion"
    )
    console.print("It passed: its word counts from now on." if why is None else f"It did not pass: {why}.")
    return int(why is not None)


async def _check(settings: Settings, chosen: JudgeSettings, rows: list[LabelledPair]) -> JudgeCheck:
    state, factory = StateFolder(STATE_FOLDER), BackendFactory()
    only = next(model for model in settings.models if model.id == chosen.model)
    alone = settings.model_copy(update={"models": (only,)})
    routes = build_routes(
        alone, lambda model, backend: factory.create(remote_options(model, backend)), node=node_name(state.path)
    )
    mark = RouteHashes(settings).of(chosen.model)
    judge = judge_of(routes[chosen.model], mark=mark, standings=Standings(), timeout_s=chosen.timeout_s)
    checks = JudgeChecks(database_url(settings, state))
    try:
        with Progress(transient=True) as progress:
            task = progress.add_task("judging", total=len(rows))
            check = await examine(judge, rows, model=chosen.model, told=lambda: progress.advance(task))
        await checks.keep(check)
    except ChecksDown as exc:
        raise Refused(str(exc)) from exc
    finally:
        await checks.aclose()
        await factory.aclose()
    return check
