"""`lamina models`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from gateway import model_store
from gateway.model_store import ModelMissing
from gateway.refusals import StartRefused
from gateway.settings import BackendSettings, Settings, load_settings, process_environment
from gateway.supervisor.plan import models_needed


def list_models(config: Path | None) -> None:
    """Print every model id with its backends and where its weights lie."""
    settings = load_settings(config, environment=process_environment())
    table = Table("id", "answered by")
    table.add_column("weights", overflow="fold")
    for model in settings.models:
        for backend in model.backends:
            table.add_row(model.id, _describe(settings, backend), _place(settings, backend))
    Console(highlight=False).print(table)


def fetch_models(names: Sequence[str], config: Path | None) -> None:
    """Fetch the named models, or all that the settings need; raises `StartRefused` where one cannot be had.

    The embedder is exported too, so that a first start has nothing left to prepare.
    """
    settings = load_settings(config, environment=process_environment())
    wanted = list(names) or models_needed(settings)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, transient=True) as progress:
        for name in wanted:
            task = progress.add_task(name, total=None)

            def show(done: int, total: int, *, task: int = task) -> None:
                progress.update(progress.task_ids[task], completed=done, total=total)

            try:
                path = model_store.fetch(name, on_progress=show)
            except (ModelMissing, OSError) as exc:
                raise StartRefused(str(exc)) from exc
            progress.console.print(f"{name}: {path}", soft_wrap=True, highlight=False)
            if name == settings.cache.semantic.model:
                progress.update(task, description=f"{name}: exporting the encoder", total=None)
                folder = _export(path, name)
                progress.console.print(f"{name}: {folder}", soft_wrap=True, highlight=False)


def _export(path: Path, name: str) -> Path:
    # Heavy and only of use here: the supervisor never imports the cache.
    from cache.compiled import ExportFailed, ensure_compiled

    base = model_store.compiled_folder()
    try:
        return asyncio.run(ensure_compiled(path, base=base, name=name, precision="int8", tell=lambda *_, **__: None))
    except ExportFailed as exc:
        raise StartRefused(str(exc)) from exc


def _describe(settings: Settings, backend: BackendSettings) -> str:
    if backend.type == "engine":
        return f"engine in {settings.engine.precision}"
    return f"{backend.type} at {backend.base_url}" if backend.base_url else backend.type


def _place(settings: Settings, backend: BackendSettings) -> str:
    models = {"engine": settings.engine.model, "embedder": settings.cache.semantic.model}
    if backend.type not in models:
        return "not on this machine" if backend.base_url else "none needed"
    model = models[backend.type]
    path = model_store.locate(model)
    if path is not None:
        return str(path)
    return "not fetched yet: lamina models fetch" if model in model_store.PACKAGED else f"missing: {model}"
