from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backends.engine.config import EngineConfig, doubts
from backends.engine.model.loader import LoadedModel
from tests.backends.engine.conftest import GreedyCheck
from tests.backends.engine.link_client import LinkClient


async def _start(
    model: Path, address: str, *flags: str, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "backends.engine", "--listen", address, "--model", str(model), "--name", "tiny",
        "--threads", "1", "--kv-memory-mb", "4", *flags,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environment,
    )  # fmt: skip


async def _events(process: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """Return what the process reports up to and with its being ready."""
    assert process.stdout is not None
    events: list[dict[str, Any]] = []
    async with asyncio.timeout(120):
        while not events or events[-1]["event"] != "ready":
            line = await process.stdout.readline()
            assert line, (await process.communicate())[1].decode()
            events.append(json.loads(line))
    return events


async def test_the_process_reports_answers_and_ends_on_sigterm(
    short_folder: Path, tiny_folder: Path, tiny_model: LoadedModel, tiny_greedy: GreedyCheck
) -> None:
    address = f"unix://{short_folder}/process.sock"
    process = await _start(tiny_folder, address, "--dtype", "float32", "--page-size", "1", "--device", "cpu")

    *progress, ready = await _events(process)
    client = await LinkClient.connect(address)
    await client.submit(1, [5, 6, 7], max_tokens=8)
    tokens, finish = await client.answer(1)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        status = await process.wait()
    await client.aclose()

    weights = [event for event in progress if event.get("what") == "weights"]  # kernels may be compiled after them
    assert weights[-1] == {"event": "progress", "what": "weights", "done": 2, "total": 2}
    assert ready == {
        "event": "ready", "address": address, "name": "tiny", "revision": tiny_model.revision, "vocab_size": 97,
        "max_len": 256, "eos_ids": [96], "dtype": "float32", "device": "cpu", "page_size": 1,
            "kv_dtype": "float32", "quantization": "none",
        "num_pages": (4 << 20) // tiny_model.shape.kv_bytes_per_token(4), "max_num_seqs": 64,
    }  # fmt: skip
    tiny_greedy([5, 6, 7], tokens)
    assert (finish, status) == ("length", 0)


async def test_the_process_ends_when_its_lifeline_does(tiny_folder: Path) -> None:
    process = await _start(tiny_folder, "tcp://127.0.0.1:0")
    ready = (await _events(process))[-1]
    assert process.stdin is not None

    process.stdin.close()
    async with asyncio.timeout(30):
        status = await process.wait()

    assert ready["address"].startswith("tcp://127.0.0.1:")
    assert status == 0


async def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    process = await _start(tmp_path / "nothing.gguf", "tcp://127.0.0.1:0")

    output, log = await process.communicate()

    assert process.returncode == 2
    assert output == b""
    (line,) = log.decode().splitlines()
    assert line.endswith(f"engine: no model at {tmp_path}/nothing.gguf")


async def test_a_device_that_nobody_knows_is_one_line(tiny_folder: Path) -> None:
    process = await _start(tiny_folder, "tcp://127.0.0.1:0", "--device", "tpu")

    _, log = await process.communicate()

    assert process.returncode == 2
    (line,) = log.decode().splitlines()
    assert line.endswith("engine: device tpu is not known; use auto, cpu, cuda or cuda:N")


async def test_whoever_started_it_is_told_once_that_there_is_no_compiler(tiny_folder: Path, tmp_path: Path) -> None:
    without_compiler = {**os.environ, "PATH": str(tmp_path)}
    process = await _start(
        tiny_folder, "tcp://127.0.0.1:0", "--compiled", str(tmp_path), "--device", "cpu", environment=without_compiler
    )

    events = await _events(process)
    process.send_signal(signal.SIGTERM)
    await process.communicate()

    (warning,) = [event["message"] for event in events if event["event"] == "warning"]
    assert warning.startswith("no CPU kernels, plain torch is used and is several times slower: ")


@pytest.mark.parametrize(
    ("num_pages", "pool_mib", "words"),
    [
        (16, 10, []),
        (4, 10, ["KV memory for 64 tokens is less than one context of 256"]),
        (16, 30, ["KV memory of 30 MiB is more than the 20 MiB that are free"]),
    ],
)
def test_a_pool_of_a_doubtful_size_is_told_of(num_pages: int, pool_mib: int, words: list[str]) -> None:
    config = EngineConfig(vocab_size=97, max_len=256, eos_ids=frozenset({96}), num_pages=num_pages)

    found = doubts(config, pool_bytes=pool_mib << 20, free_bytes=20 << 20)

    assert [doubt.partition(":")[0] for doubt in found] == words
