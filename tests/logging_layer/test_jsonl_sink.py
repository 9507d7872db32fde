"""Files of JSON lines: each record once, whoever crashes, and never more than is allowed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logging_layer.jsonl_sink import FILE, ROTATED, JsonlSink
from logging_layer.sink import SinkDown
from tests.logging_layer.samples import batch_of, make_records
from tests.logging_layer.test_shipping import ship, spool_of


def a_sink(
    folder: Path, *, max_file_bytes: int = 10**9, max_files: int = 3, clock: Callable[[], float] = time.time
) -> JsonlSink:
    return JsonlSink(folder, max_file_bytes=max_file_bytes, max_files=max_files, clock=clock)


def lines(folder: Path) -> list[bytes]:
    return [line for path in [*sorted(folder.glob(ROTATED)), folder / FILE] for line in path.read_bytes().splitlines()]


async def test_every_record_is_one_line_as_it_is(tmp_path: Path) -> None:
    records = await make_records(1203)
    await spool_of(tmp_path / "spool", records)

    await ship(tmp_path / "spool", a_sink(tmp_path / "lines"))

    assert lines(tmp_path / "lines") == [record.to_json() for record in records]
    assert (tmp_path / "lines" / FILE).stat().st_mode & 0o777 == 0o600


async def test_a_batch_that_comes_again_to_a_new_process_is_there_once(tmp_path: Path) -> None:
    batches = [batch_of(await make_records(5)) for _ in range(2)]
    first = a_sink(tmp_path)
    for batch in batches:
        await first.send(batch)

    await a_sink(tmp_path).send(batches[1])
    await a_sink(tmp_path).send([*batches[1], *batch_of(await make_records(1))])

    assert len(lines(tmp_path)) == 11


async def test_a_line_that_a_crash_tore_is_cut_off_and_written_again(tmp_path: Path) -> None:
    batch = batch_of(await make_records(3))
    await a_sink(tmp_path).send(batch)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes()[:-30])

    await a_sink(tmp_path).send(batch)

    assert [json.loads(line)["id"] for line in lines(tmp_path)] == [each.record["id"] for each in batch]


async def test_no_more_files_and_no_larger_ones_than_allowed(tmp_path: Path) -> None:
    batches = [batch_of(await make_records(2)) for _ in range(9)]
    size = sum(len(each.data) + 1 for each in batches[0])
    sink = a_sink(tmp_path, max_file_bytes=size * 2 + 50, max_files=2)

    for batch in batches:
        await sink.send(batch)

    files = [*tmp_path.glob(ROTATED), tmp_path / FILE]
    assert len(files) == 3
    assert all(path.stat().st_size <= size * 2 + 50 for path in files)
    newest = [each.record["id"] for batch in batches[-5:] for each in batch]
    assert [json.loads(line)["id"] for line in lines(tmp_path)] == newest


async def test_a_day_has_a_file_of_its_own(tmp_path: Path) -> None:
    batches = [batch_of(await make_records(2)) for _ in range(3)]
    today, tomorrow = a_sink(tmp_path), a_sink(tmp_path, clock=lambda: time.time() + 86_400.0)

    await today.send(batches[0])
    await today.send(batches[1])
    await tomorrow.send(batches[2])

    (full,) = tmp_path.glob(ROTATED)
    assert len(full.read_bytes().splitlines()) == 4
    assert len((tmp_path / FILE).read_bytes().splitlines()) == 2


async def test_a_folder_that_cannot_be_is_a_sink_that_is_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SinkDown, match="cannot be written"):
        await a_sink(tmp_path / "file" / "lines").send(batch_of(await make_records(1)))


def test_a_full_disk_leaves_no_half_of_a_batch_and_loses_none(tmp_path: Path) -> None:
    script = """
import asyncio, resource, sys
from pathlib import Path
from logging_layer.sink import SinkDown
from tests.logging_layer.samples import batch_of, make_records
from tests.logging_layer.test_jsonl_sink import a_sink, lines

async def main() -> None:
    folder = Path(sys.argv[1])
    sink, first, second = a_sink(folder), batch_of(await make_records(2)), batch_of(await make_records(20))
    await sink.send(first)
    full = (folder / "calls.jsonl").stat().st_size + 4000
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    try:
        await sink.send(second)
    except SinkDown as exc:
        print(exc, len(lines(folder)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await sink.send(second)
    print(len(lines(folder)))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )

    assert done.stdout.splitlines() == [f"{tmp_path}/{FILE} cannot be written: File too large 2", "22"]
