"""Where exported encoders are kept: one folder per model's content, precision and exporter version."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from orchestration.core.lifeline import report

EXPORTER_VERSION = 2


class ExportFailed(Exception):
    """The model could not be turned into what the owner serves; the message says why."""


def hash_model(model_folder: Path) -> str:
    """Hash the names and bytes of every file in a model's folder; raises `ExportFailed` where there are none."""
    digest = hashlib.sha256()
    files = sorted(path for path in model_folder.rglob("*") if path.is_file())
    if not (model_folder / "tokenizer.json").exists() or not (model_folder / "modules.json").exists():
        raise ExportFailed(f"{model_folder} is no sentence-transformers folder: modules.json or tokenizer.json missing")
    for path in files:
        digest.update(f"{path.relative_to(model_folder)}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


async def ensure_compiled(
    model_folder: Path, *, base: Path, name: str, precision: str, tell: Callable[..., None] = report
) -> Path:
    """Return the folder of the exported model, exporting it in a process of its own where it is not there yet.

    Progress lines of that process are passed to `tell`, as `(event, **fields)`. Safe in several processes at once:
    the last step is one rename. Raises `ExportFailed`.
    """
    model_hash = await asyncio.to_thread(hash_model, model_folder)
    home = base / f"{name}-{model_hash}-{precision}-{EXPORTER_VERSION}"
    if home.exists():
        return home
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, prefix="exporting-") as scratch:
        made = Path(scratch) / "made"
        await _run_export(model_folder, made, precision, tell)
        description = json.loads((made / "encoder.json").read_text())
        revision = f"{name}@{model_hash}/{precision}-{EXPORTER_VERSION}"
        (made / "encoder.json").write_text(json.dumps({**description, "name": name, "revision": revision}))
        if not home.exists():
            made.rename(home)
    return home


async def _run_export(model_folder: Path, out: Path, precision: str, tell: Callable[..., None]) -> None:
    command = [sys.executable, "-m", "cache.export", str(model_folder), str(out), "--precision", precision]
    child = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        async for line in child.stdout:
            tell(**json.loads(line))
        if await child.wait() != 0:
            raise ExportFailed(f"exporting {model_folder} ended with status {child.returncode}; its log says why")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
