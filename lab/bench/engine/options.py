"""What the options of `lamina bench engine` mean: a plan, and who takes part; a wrong one is refused by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.bench.engine.contestants import Contestant, Lamina, LlamaCpp, Remote, Vllm, our_precisions
from lab.bench.engine.load import ClosedLoop, Load, OpenLoop

_LLAMA_CPP_NEEDS = (
    "llama.cpp was asked for: give --llama-server PATH, built from its source for this CPU (cmake -DGGML_NATIVE=ON, "
    "target llama-server), and --gguf FILE; `lamina models` says where ours lies, and its llama-quantize makes other "
    "precisions of it"
)
_VLLM_NEEDS = (
    "vllm was asked for: give --vllm PATH, the command of its CPU build in an environment of its own, and --model "
    "FOLDER, the same model as a Hugging Face folder"
)


def make_loads(concurrency: str, rate: str, burstiness: float, requests: int | None) -> Sequence[Load]:
    """Return the loads: open loops where there are rates, closed ones else. Raises `ValueError`."""
    if not burstiness > 0:
        raise ValueError(f"--burstiness is {burstiness:g}; it must be above 0")
    rates = _numbers("--rate", rate)
    if rates:
        return [OpenLoop(each, requests or 64, burstiness) for each in rates]
    counts = [int(each) for each in _numbers("--concurrency", concurrency)]
    return [ClosedLoop(count, requests or count * default_rounds(count)) for count in counts]


def default_rounds(concurrency: int) -> int:
    """Return how many requests each client sends: 4 alone, 1 from 64 clients on, so that runs take about as long."""
    return max(1, round(4 - math.log(concurrency, 4)))


def read_settings(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read `SECTION.KEY=VALUE`s; raises `ValueError`."""
    changed: dict[str, dict[str, Any]] = {}
    for setting in settings:
        path, equals, value = setting.partition("=")
        section, dot, key = path.partition(".")
        if not (equals and dot and key):
            raise ValueError(f"--set takes SECTION.KEY=VALUE, not '{setting}'")
        changed.setdefault(section, {})[key] = _scalar(value)
    return changed


def read_ours(precision: str, settings: Sequence[str], *, with_link: bool) -> Sequence[Contestant]:
    """Return our own servers, one by precision; raises `ValueError`."""
    names = list(filter(None, precision.split(",")))
    for name in names:
        if name not in our_precisions():
            raise ValueError(f"--precision '{name}' is not known; these are: {', '.join(our_precisions())}")
    return [Lamina(name, read_settings(settings), with_link=with_link) for name in names]


def read_remote(url: str, name: str, pid: int | None) -> Contestant:
    """Return a server that runs already."""
    return Remote(url.rstrip("/").removesuffix("/v1"), name, pid)


def read_rivals(
    against: str, *, llama_server: Path | None, gguf: Sequence[str], vllm: Path | None, model: Path | None
) -> Sequence[Contestant]:
    """Return the rivals that were named; raises `ValueError`, saying what a missing one needs."""
    rivals: list[Contestant] = []
    for name in filter(None, against.split(",")):
        match name:
            case "llama.cpp":
                if llama_server is None or not gguf:
                    raise ValueError(_LLAMA_CPP_NEEDS)
                rivals += [LlamaCpp(_found(llama_server), *_labelled(each)) for each in gguf]
            case "vllm":
                if vllm is None or model is None:
                    raise ValueError(_VLLM_NEEDS)
                rivals.append(Vllm(_found(vllm), _found(model)))
            case other:
                raise ValueError(f"--against '{other}' is not known; these are: llama.cpp, vllm")
    return rivals


def _labelled(text: str) -> tuple[Path, str]:
    """Read `LABEL=FILE`; without a label it is the last part of the file's name, as in model-q8_0.gguf."""
    label, equals, path = text.rpartition("=")
    file = _found(Path(path))
    return file, label if equals else file.stem.rpartition("-")[2]


def _found(path: Path) -> Path:
    if not path.exists():
        raise ValueError(f"there is no {path}")
    return path.absolute()


def _scalar(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(each) for each in filter(None, text.split(","))]
    except ValueError:
        raise ValueError(f"{option} takes numbers with commas between them, not '{text}'") from None
    if any(not number > 0 for number in numbers):
        raise ValueError(f"{option} takes numbers above 0, not '{text}'")
    return numbers
