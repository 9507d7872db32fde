"""`lamina bench engine`: its options. What measuring needs is imported when it runs."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lab.bench.engine.contestants import Contestant
    from lab.bench.engine.run import Outcome, Plan

Rivals = Annotated[str, typer.Option(help="Who else is measured in the same run: llama.cpp, vllm, or both.")]


def engine(  # noqa: PLR0913  # long: every option is a parameter
    concurrency: Annotated[str, typer.Option(help="Clients of the closed loop, one run each.")] = "1,4,16,64",
    rate: Annotated[str, typer.Option(help="Requests a second of an open loop, one run each, instead.")] = "",
    burstiness: Annotated[float, typer.Option(help="Of the arrivals: 1 is Poisson, less comes in bursts.")] = 1.0,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Of one run; by default 4 for one client to 64 for 64 clients.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of everything, in turn.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="About so many in each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=1, help="Exactly so many in each answer.")] = 64,
    slo: Annotated[str, typer.Option(help="What a request must keep to count for goodput.")] = "ttft:500,tpot:50",
    precision: Annotated[str, typer.Option(help="Of our weights: fp32, bf16, int8, int4; several in turn.")] = "bf16",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of our server, as in engine.prefix_cache=false.")
    ] = None,
    direct: Annotated[bool, typer.Option("--direct", help="Measure our engine over its link, too.")] = False,
    url: Annotated[str | None, typer.Option(help="Measure a server that runs already instead of ours.")] = None,
    name: Annotated[str, typer.Option(help="The model's name at --url.")] = "smollm2-135m-instruct",
    pid: Annotated[int | None, typer.Option(help="The process of --url, for its CPU time.")] = None,
    against: Rivals = "",
    llama_server: Annotated[
        Path | None, typer.Option(envvar="LAMINA_BENCH_LLAMA_SERVER", help="llama.cpp's llama-server.")
    ] = None,
    gguf: Annotated[
        list[str] | None, typer.Option(envvar="LAMINA_BENCH_GGUF", help="Its model: [LABEL=]FILE, several times.")
    ] = None,
    vllm: Annotated[Path | None, typer.Option(envvar="LAMINA_BENCH_VLLM", help="The command vllm.")] = None,
    model: Annotated[
        Path | None, typer.Option(envvar="LAMINA_BENCH_MODEL", help="Its model: a Hugging Face folder.")
    ] = None,
    seed: Annotated[str, typer.Option(help="Of prompts and arrivals.")] = "0",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run's figures there.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the table there.")] = None,
) -> None:
    """Measure the engine under load, beside llama.cpp and vLLM where asked.

    Our server is started in a temporary folder with its default settings and measured as clients see it: through the
    gateway, streamed, one connection per request. Rivals are started and ended by the same command; every repeat goes
    through all of them at each load, so that a busy spell of the machine meets them all. Medians with the least and
    the most; the model is SmolLM2-135M-Instruct for everyone, in the precision that the name says.
    """
    from lab.bench.engine import options
    from lab.bench.engine.figures import Objective
    from lab.bench.engine.run import Plan

    try:
        plan = Plan(
            loads=options.make_loads(concurrency, rate, burstiness, requests),
            repeats=repeats,
            prompt_words=prompt_tokens,
            output_tokens=output_tokens,
            objective=Objective.read(slo),
            seed=seed,
        )
        ours = (
            [options.read_remote(url, name, pid)]
            if url
            else options.read_ours(precision, setting or [], with_link=direct)
        )
        rivals = options.read_rivals(against, llama_server=llama_server, gguf=gguf or [], vllm=vllm, model=model)
    except ValueError as exc:
        raise typer.BadParameter(str(exc)) from exc
    outcome = _run([*ours, *rivals], plan)
    _write(outcome, plan, json_file, markdown_file)
    if not outcome.rows or any(row.figures.num_incomplete for row in outcome.rows):
        raise typer.Exit(1)


def _run(contestants: Sequence[Contestant], plan: Plan) -> Outcome:
    import uvloop

    from lab.bench.engine.run import run

    with tempfile.TemporaryDirectory(prefix="lamina-bench-") as folder:
        work = run(contestants, plan, folder=Path(folder), say=_say)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _write(outcome: Outcome, plan: Plan, json_file: Path | None, markdown_file: Path | None) -> None:
    from dataclasses import asdict

    from lab.bench.engine.run import as_json, describe_machine
    from lab.bench.engine.table import markdown, show, standings

    show(outcome)
    if json_file:
        document = {
            "machine": describe_machine(),
            "plan": asdict(plan),
            "rows": as_json(outcome),
            "standings": [asdict(standing) for standing in standings(outcome)],
            "left_out": dict(outcome.left_out),
        }
        json_file.write_text(json.dumps(document, indent=1))
    if markdown_file:
        markdown_file.write_text(markdown(outcome))
