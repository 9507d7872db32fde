"""The commands and their options. What a command needs is imported when it runs, so that `lamina` starts at once."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.address import address_of
from gateway.refusals import Refused

app = typer.Typer(
    name="lamina",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""An LLM gateway that carries its own engine: ordered layers around a continuous-batching core.

    [bold]lamina serve[/bold] starts everything in this folder and listens on http://127.0.0.1:4000; point any OpenAI
    client at http://127.0.0.1:4000/v1. [bold]lamina chat[/bold] talks to it from here and shows which layer
    answered. Settings are read from lamina.yaml where there is one; every one of them can be set in the
    environment too, as LAMINA_<SECTION>__<KEY>.""",
)
models_app = typer.Typer(invoke_without_command=True, help="List the models of the settings; fetch them ahead.")
app.add_typer(models_app, name="models")
keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the keys that clients call with.")
app.add_typer(keys_app, name="keys")
judge_app = typer.Typer(no_args_is_help=True, help="Check the judge that the semantic cache may ask off the path.")
app.add_typer(judge_app, name="judge")
cache_app = typer.Typer(no_args_is_help=True, help="See what a running gateway's caches keep, and forget it.")
app.add_typer(cache_app, name="cache")

Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="The settings' file; lamina.yaml where that exists.")
]
Url = Annotated[str | None, typer.Option(help="Where the gateway listens; where this folder's does by default.")]
MasterKey = Annotated[
    str | None, typer.Option("--key", envvar="LAMINA_MASTER_KEY", help="The master key, where there is one.")
]
Tag = Annotated[str | None, typer.Option(help="Only entries with this tag.")]
CachedModel = Annotated[str | None, typer.Option("--model", help="Only answers of this model, or asked of it.")]
Tenant = Annotated[str | None, typer.Option(help="Only this tenant's entries.")]


def main() -> None:
    """Run the command line; what is refused is one line on stderr."""
    add_commands(sys.argv[1:])
    try:
        try:
            app()
        finally:
            _flush()
    except Refused as exc:
        sys.stderr.write(f"lamina: {exc}\n")
        sys.exit(exc.exit_code)
    except OSError as exc:
        if exc.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at the end
        sys.stderr.write("lamina: the output cannot be written: no space is left\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _flush() -> None:
    """Write what was printed; a closed output has nothing, and who reads no further wants no more."""
    if sys.stdout is not None:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()


def add_commands(arguments: list[str]) -> None:
    """Add the commands of other folders, each where it is asked for or where all are listed."""
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    for command in entry_points(group="lamina.commands"):
        if asked in (None, command.name):
            app.add_typer(command.load(), name=command.name)


@app.command()
def serve(
    config: Config = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; off loopback a master key is needed.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="How many worker processes share the port.")] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Start an MLflow server too and send every call's trace to it.")
    ] = False,
) -> None:
    """Serve in this folder: fetch the models, start every part, say when it is ready, end on Ctrl-C.

    Nothing else needs to run: the engine, a private Valkey, the caches and the log are started here. State is kept
    in ./.lamina; each part's log is in ./.lamina/logs.
    """
    from gateway.cli import serve as command  # the supervisor's imports are not for every command

    overrides = {"SERVER__HOST": host, "SERVER__PORT": port, "SERVER__WORKERS": workers}
    if mlflow:
        overrides["MLFLOW__SERVE"] = "true"
    command.run(config=config, overrides={key: str(value) for key, value in overrides.items() if value is not None})


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="One question; without it, a conversation.")] = None,
    url: Url = None,
    model: Annotated[str | None, typer.Option(help="The model to ask; the first one that chats by default.")] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    temperature: Annotated[float, typer.Option(help="0 is needed for the semantic cache to answer.")] = 0.0,
    key: Annotated[
        str | None, typer.Option(envvar="LAMINA_API_KEY", help="The key to send, where the gateway asks for one.")
    ] = None,
) -> None:
    """Talk to a running gateway; under each answer stands which layer gave it and how fast."""
    from gateway.cli import chat as command  # httpx is not for every command

    session = command.Session(url=address_of(url), model=model, system=system, temperature=temperature, key=key)
    command.run(session, message)


@models_app.callback()
def models(context: typer.Context, config: Config = None) -> None:
    """List the models that the settings name: who answers for them, and whether they are on this machine."""
    from gateway.cli import models as command  # pydantic and yaml are not for every command

    if context.invoked_subcommand is None:
        command.list_models(config)


@models_app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(help="Model ids; all that the settings need by default.")] = None,
    config: Config = None,
) -> None:
    """Fetch models now, so that the next start need not."""
    from gateway.cli import models as command  # pydantic and yaml are not for every command

    command.fetch_models(names or [], config)


@keys_app.command("create")
def create_key(  # noqa: PLR0913 - every option is a parameter
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    team: Annotated[
        str | None, typer.Option(help="A team of the settings' limits.teams, whose limits it shares.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="A model that it may use; several times; all by default.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Calls at once.")] = None,
    budget_usd: Annotated[float | None, typer.Option(min=1e-9, help="US dollars a window.")] = None,
    window: Annotated[str, typer.Option(help="The budget's window: 1h, 1d or 30d.")] = "1d",
    expires: Annotated[str | None, typer.Option(help="After how long it ends, as in 12h or 90d.")] = None,
    config: Config = None,
) -> None:
    """Make a key and show its secret, this once; from the first key on every call needs one."""
    from gateway.cli import keys as command  # SQLAlchemy is not for every command
    from gateway.limits.rules import Limits

    limits = Limits(rpm=rpm, tpm=tpm, parallel=parallel, budget_usd=budget_usd, window=window)
    command.create(command.new_key(name, team=team, models=model or (), limits=limits, expires_in=expires), config)


@keys_app.command("list")
def list_keys(config: Config = None) -> None:
    """List the keys with their limits, revoked and expired ones too."""
    from gateway.cli import keys as command  # SQLAlchemy is not for every command

    command.list_keys(config)


@keys_app.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="The key's id, or the name of one or more.")], config: Config = None
) -> None:
    """Revoke a key for good; running gateways refuse it within two seconds."""
    from gateway.cli import keys as command  # SQLAlchemy is not for every command

    command.revoke(name, config)


@keys_app.command("spend")
def spend(config: Config = None) -> None:
    """Say what each key and team spent in its budget window so far."""
    from gateway.cli import keys as command  # SQLAlchemy is not for every command

    command.spend(config)


@judge_app.command("check")
def check_judge(
    pairs: Annotated[
        Path | None, typer.Option(help="Rows {a, b, same_answer}; the 704 shipped ones by default.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many; at least 100 can pass.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures there.")] = None,
    config: Config = None,
) -> None:
    """Put labelled pairs to cache.semantic.judge: its word counts once it got 95 % right and refused 95 % of traps.

    Each pair is one call of its model. The result is kept in the database; what serves on it knows within seconds.
    """
    from gateway.cli import judge as command  # backends are not for every command

    raise typer.Exit(command.run(pairs=pairs, limit=limit, json_path=json_file, config=config))


@cache_app.command("stats")
def cache_stats(url: Url = None, key: MasterKey = None) -> None:
    """Count what is kept, by kind, model and tenant, with its hits and what they saved."""
    from gateway.cli import cache as command  # httpx is not for every command

    command.stats(command.Gateway(address_of(url), key))


@cache_app.command("list")
def cache_list(
    tag: Tag = None,
    model: CachedModel = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    url: Url = None,
    key: MasterKey = None,
) -> None:
    """List entries, the longest-lived first."""
    from gateway.cli import cache as command  # httpx is not for every command

    wanted = {"tag": tag, "model": model, "tenant": tenant}
    command.list_entries(command.Gateway(address_of(url), key), wanted=wanted, limit=limit)


@cache_app.command("delete")
def cache_delete(
    entry: Annotated[str | None, typer.Argument(help="An entry's id, as in x-lamina-entry.")] = None,
    tag: Tag = None,
    model: CachedModel = None,
    tenant: Tenant = None,
    every: Annotated[bool, typer.Option("--all", help="Forget everything.")] = False,
    reason: Annotated[str | None, typer.Option(help="Why, for the audit line.")] = None,
    url: Url = None,
    key: MasterKey = None,
) -> None:
    """Forget one answer, or all that have a tag, model and tenant in common: no worker or node serves them again."""
    from gateway.cli import cache as command  # httpx is not for every command

    wanted = {"tag": tag, "model": model, "tenant": tenant}
    command.delete(command.Gateway(address_of(url), key), entry=entry, wanted=wanted, is_all=every, reason=reason)


@app.command()
def tune(  # noqa: PLR0913 - every option is a parameter
    scored: Annotated[
        Path | None,
        typer.Option(help="JSONL of labelled requests, {similarity, correct} a line; the live log by default."),
    ] = None,
    cost_call: Annotated[float, typer.Option(help="US dollars that a call to a backend costs.")] = 0.002,
    cost_wrong: Annotated[float, typer.Option(help="US dollars that a wrong answer costs.")] = 0.05,
    thresholds: Annotated[
        str | None, typer.Option(help="Bars parted by commas; every thousandth from 0.5 to 1 by default.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow/--no-mlflow", help="Write the study to MLflow, where the settings name one.")
    ] = True,
    mlflow_uri: Annotated[str | None, typer.Option(help="The MLflow server, instead of the settings' one.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the interactive page there, too.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Put the recommended bar in force, on every worker and node.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Why, for the history of bars; with --apply.")] = None,
    watch_s: Annotated[
        float | None, typer.Option("--watch", min=1.0, help="Sweep the live log again every so many seconds.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the outcome of each bar there.")] = None,
    config: Config = None,
) -> None:
    """Find the semantic cache's bar from what a wrong answer costs, as a study in MLflow.

    Every bar's hits, wrong hits and net value per 1,000 requests, with intervals as wide as the labels are few. The
    recommended bar has the most value that the labels vouch for.
    """
    from gateway.cli import tune as command  # SQLAlchemy and httpx are not for every command

    if reason is not None and not apply:
        raise Refused("--reason is kept with a bar that is put in force: add --apply, or leave it out")
    request = command.TuneRequest(
        scored=scored,
        prices=command.prices_of(cost_call, cost_wrong),
        bars=command.bars_of(thresholds),
        has_mlflow=mlflow,
        mlflow_uri=mlflow_uri,
        page_path=page,
        json_path=json_path,
        applies=apply,
        reason=reason,
        config=config,
    )
    if watch_s is None:
        command.run(request)
    else:
        command.watch(request, every_s=watch_s)


@app.command()
def replay(
    call: Annotated[str | None, typer.Argument(help="A call's id, as in x-lamina-call.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every call that is in SQL.")] = False,
    since_hours: Annotated[float | None, typer.Option(min=0.0, help="With --all: only the last so many hours.")] = None,
    config: Config = None,
) -> None:
    """Make a call's decisions again from the log alone: cache, guard, odds, routing and input checks must agree.

    What was redacted is said to be redacted, not to agree. Fails where a decision comes out otherwise.
    """
    from gateway.cli import replay as command  # SQLAlchemy and the guard are not for every command

    if (call is None) == (not every):
        raise Refused("name one call, or say --all")
    since = 0.0 if since_hours is None else time.time() - since_hours * 3600
    raise typer.Exit(command.replay_all(since, config) if call is None else command.replay_one(call, config))


@app.command()
def doctor(config: Config = None) -> None:
    """Say what is configured, what is reachable and what is missing, and how to mend it; fails where something is."""
    from gateway.cli import doctor as command  # it looks at every part

    raise typer.Exit(command.run(config))
