"""The interleaved run: every repeat goes through all loads, and at each load through all contestants in turn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from lab.bench.engine.answer import Answer
from lab.bench.engine.contestants import Contestant, Running, Shape
from lab.bench.engine.figures import Figures, Objective, summarise
from lab.bench.engine.http_client import CompletionClient
from lab.bench.engine.link_client import LinkClient
from lab.bench.engine.load import ClosedLoop, Load, run_load
from lab.bench.engine.processes import ServerFailed
from lab.bench.engine.prompts import make_prompts, make_token_prompts
from lab.bench.engine.server_numbers import ServerNumbers, watching
from lab.bench.process_tree import cpu_s

_SLOT_TOKENS = 256
_SHORT_ANSWER = 8
_WARM_UP = 4

Say = Callable[[str], None]


class Reply(Protocol):
    """What a request gave, to be read after the run."""

    def read(self) -> Answer:
        """Read it."""
        ...


Ask = Callable[[int], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent: prompts of about `prompt_words` tokens, answers of exactly `output_tokens`, each load so often."""

    loads: Sequence[Load]
    repeats: int
    prompt_words: int
    output_tokens: int
    objective: Objective
    seed: str
    timeout_s: float = 300.0

    @property
    def shape(self) -> Shape:
        """Return what a server must hold."""
        most = max((load.concurrency for load in self.loads if isinstance(load, ClosedLoop)), default=64)
        wanted = self.prompt_words + self.output_tokens + 64  # some words are two tokens
        return Shape(num_slots=max(64, most), tokens_per_slot=-(-wanted // _SLOT_TOKENS) * _SLOT_TOKENS)


@dataclass(frozen=True, slots=True)
class Row:
    """One contestant under one load, once. CPU seconds are those of the server's whole family of processes."""

    contestant: str
    bits: int
    is_ours: bool
    load: str
    repeat: int
    load_average: float
    client_cpu_s: float
    server_cpu_s: float | None
    figures: Figures
    server: ServerNumbers


@dataclass(frozen=True, slots=True)
class Outcome:
    """All rows, and who could not be started and why."""

    rows: Sequence[Row]
    left_out: Mapping[str, str]


async def run(contestants: Sequence[Contestant], plan: Plan, *, folder: Path, say: Say) -> Outcome:
    """Start every contestant, warm it up, and measure all of them at every load, `plan.repeats` times."""
    rows: list[Row] = []
    async with _started(contestants, plan, folder=folder, say=say) as (running, left_out):
        for server in running:
            await _warm_up(server, plan)
        for repeat in range(plan.repeats):
            for load in plan.loads:
                for server in running:
                    rows.append(await measure(server, load, plan, repeat=repeat))
                    rate = rows[-1].figures.output_tokens_per_s
                    say(f"repeat {repeat + 1}/{plan.repeats}, {load.label}: {server.name} {rate:,.0f} tok/s")
    return Outcome(rows, left_out)


async def measure(server: Running, load: Load, plan: Plan, *, repeat: int) -> Row:
    """Measure one server under one load; a short request before it is not counted."""
    seed = f"{plan.seed}/{repeat}/{load.label}"
    async with _asking(server, plan, count=load.num_requests, seed=seed) as ask, watching(*server.host_port) as numbers:
        load_average = os.getloadavg()[0]
        server_cpu_s = cpu_s(server.pid, with_ended=True) if server.pid else None
        client_cpu_s = time.process_time()
        replies = await run_load(load, ask, seed=seed)
        client_cpu_s = time.process_time() - client_cpu_s
        if server.pid and server_cpu_s is not None:
            server_cpu_s = cpu_s(server.pid, with_ended=True) - server_cpu_s
    return Row(
        contestant=server.name,
        bits=server.bits,
        is_ours=server.is_ours,
        load=load.label,
        repeat=repeat,
        load_average=load_average,
        client_cpu_s=client_cpu_s,
        server_cpu_s=server_cpu_s,
        figures=summarise([reply.read() for reply in replies], plan.objective),
        server=numbers,
    )


@contextlib.asynccontextmanager
async def _asking(server: Running, plan: Plan, *, count: int, seed: str) -> AsyncIterator[Ask]:
    """Give what sends the prompt of a number, of `count` prompts, over HTTP or over the link, after a short one."""
    if server.link is None:
        client = CompletionClient(
            server.url, model=server.model, max_tokens=plan.output_tokens, timeout_s=plan.timeout_s
        )
        prompts = make_prompts(count, num_words=plan.prompt_words, seed=seed)
        await client.ask(f"{seed} begins", max_tokens=_SHORT_ANSWER)
        yield lambda number: client.ask(prompts[number])
        return
    link = LinkClient(server.link, max_tokens=plan.output_tokens, timeout_s=plan.timeout_s)
    try:
        size = await link.vocab_size()
        tokens = make_token_prompts(count + 1, num_tokens=plan.prompt_words, seed=seed, vocab_size=size)
        await link.ask(tokens[count], max_tokens=_SHORT_ANSWER)
        yield lambda number: link.ask(tokens[number])
    finally:
        await link.aclose()


def describe_machine() -> Mapping[str, Any]:
    """Return what the figures were measured on."""
    cpus = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "cpu": cpus[0] if cpus else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / (1 << 20), 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_average": os.getloadavg(),
    }


def as_json(outcome: Outcome) -> Sequence[Mapping[str, Any]]:
    """Return the rows as plain values."""
    return [asdict(row) for row in outcome.rows]


@contextlib.asynccontextmanager
async def _started(
    contestants: Sequence[Contestant], plan: Plan, *, folder: Path, say: Say
) -> AsyncIterator[tuple[Sequence[Running], Mapping[str, str]]]:
    """Start them one after another, as starting together would slow each down past its deadline; end them at last."""
    running: list[Running] = []
    left_out: dict[str, str] = {}
    try:
        for number, contestant in enumerate(contestants):
            say(f"starting {contestant.name}")
            try:
                running += await contestant.start(folder / str(number), plan.shape)
            except ServerFailed as exc:
                left_out[contestant.name] = str(exc)
                say(f"left out: {exc}")
        yield running, left_out
    finally:
        await asyncio.gather(*(server.aclose() for server in running))


async def _warm_up(server: Running, plan: Plan) -> None:
    """Answer a few requests at once, whose times do not count."""
    async with _asking(server, plan, count=_WARM_UP, seed=f"{plan.seed}/warm-up") as ask:
        await asyncio.gather(*map(ask, range(_WARM_UP)))


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()
