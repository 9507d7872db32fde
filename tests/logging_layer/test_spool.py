"""The spool: what is appended is on the disk, and stays there whoever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logging_layer import segment
from logging_layer.spool import Spool, SpoolLimits
from tests.logging_layer.samples import make_record, make_records, spooled


async def test_what_was_appended_is_in_the_file_after_closing(tmp_path: Path) -> None:
    records = await make_records(30)
    spool = Spool(tmp_path / "spool", worker="w0")
    await spool.start()

    for record in records:
        spool.append(record)
    await spool.aclose()

    assert spooled(tmp_path / "spool") == [record.to_json() for record in records]
    assert spool.counts() == {"appended": 30, "synced": 30, "lost": 0, "contents_dropped": 0}


async def test_a_flush_means_that_all_is_durable(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker="w0")
    await spool.start()
    spool.append(await make_record())

    assert await spool.flush()

    assert spool.counts()["synced"] == 1
    assert len(spooled(tmp_path)) == 1
    assert await spool.check_health() is None
    await spool.aclose()


def test_a_kill_loses_nothing_appended_a_second_before(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.logging_layer.writer_child", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        appended: list[tuple[str, float]] = []
        while not appended or appended[-1][1] < appended[0][1] + 1.3:
            call_id, at = child.stdout.readline().split()
            appended.append((call_id, float(at)))
        child.kill()

    kept = {json.loads(data)["id"] for data in spooled(tmp_path)}
    due = {call_id for call_id, at in appended if at < appended[-1][1] - 1.0}
    assert due
    assert due <= kept
    assert all(segment.is_finished(path) for path in segment.list_segments(tmp_path))


async def test_a_live_segment_is_not_finished_until_its_writer_closes_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker="w0")
    await spool.start()
    spool.append(await make_record())
    await spool.flush()
    (path,) = segment.list_segments(tmp_path)

    assert not segment.is_finished(path)
    await spool.aclose()
    assert segment.is_finished(path)


async def test_segments_are_closed_by_size(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker="w0", limits=SpoolLimits(max_segment_bytes=1))
    await spool.start()

    for record in await make_records(3):
        spool.append(record)
        await spool.flush()

    assert len(segment.list_segments(tmp_path)) == 3
    assert all(segment.is_finished(path) for path in segment.list_segments(tmp_path))
    await spool.aclose()


async def test_segments_are_closed_by_age(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker="w0", limits=SpoolLimits(max_segment_age_s=0.0))
    await spool.start()

    spool.append(await make_record())
    await spool.flush()

    assert [segment.is_finished(path) for path in segment.list_segments(tmp_path)] == [True]
    await spool.aclose()


async def test_a_disk_that_refuses_is_reported_and_nothing_is_lost_when_it_comes_back(tmp_path: Path) -> None:
    folder, away = tmp_path / "spool", tmp_path / "away"
    spool = Spool(folder, worker="w0", limits=SpoolLimits(max_segment_bytes=1, retry_s=0.01))
    await spool.start()
    records = await make_records(3)
    spool.append(records[0])
    await spool.flush()

    folder.rename(away)
    spool.append(records[1])
    assert not await spool.flush(timeout_s=0.2)
    problem = await spool.check_health()
    away.rename(folder)
    spool.append(records[2])
    assert await spool.flush()

    assert problem == "the call log cannot be written: No such file or directory"
    assert await spool.check_health() is None
    assert spooled(folder) == [record.to_json() for record in records]
    await spool.aclose()


def test_a_full_disk_leaves_no_line_that_does_not_check(tmp_path: Path) -> None:
    script = """
import asyncio, resource, sys
from pathlib import Path
from logging_layer.spool import Spool, SpoolLimits
from tests.logging_layer.samples import make_records

async def main() -> None:
    spool = Spool(Path(sys.argv[1]), worker="w0", limits=SpoolLimits(retry_s=0.01))
    await spool.start()
    records = await make_records(10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    for record in records:
        spool.append(record)
    await spool.flush(timeout_s=0.3)
    print(await spool.check_health())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await spool.aclose()
    print(spool.counts())

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )

    problem, counts = done.stdout.splitlines()
    assert problem == "the call log cannot be written: File too large"
    assert counts == str({"appended": 10, "synced": 10, "lost": 0, "contents_dropped": 0})
    assert len({json.loads(data)["id"] for data in spooled(tmp_path)}) == 10


async def test_overflow_drops_contents_first_then_records_and_counts_both(tmp_path: Path) -> None:
    record = await make_record(filler="x" * 1000)
    size = len(record.to_json())
    spool = Spool(tmp_path, worker="w0", limits=SpoolLimits(max_queue_bytes=size * 6))

    for _ in range(20):  # not started: nothing leaves the queue
        spool.append(record)
    counts = spool.counts()
    await spool.start()
    await spool.flush()
    problem = await spool.check_health()
    await spool.aclose()

    lines = [json.loads(data) for data in spooled(tmp_path)]
    kept = [line for line in lines if "id" in line]
    assert len(kept) + counts["lost"] == 20
    assert counts["lost"] > 0
    assert counts["contents_dropped"] > 0
    assert [line["content"]["request"] is None for line in kept].count(True) == counts["contents_dropped"]
    assert [line["lost"]["records"] for line in lines if "lost" in line] == [counts["lost"]]
    assert problem == f"{counts['lost']} call records were lost"


async def test_an_append_after_the_end_is_counted_as_lost(tmp_path: Path) -> None:
    spool = Spool(tmp_path, worker="w0")
    await spool.start()
    await spool.aclose()

    spool.append(await make_record())

    assert spool.counts()["lost"] == 1


async def test_the_folder_and_its_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", worker="w0")
    await spool.start()
    spool.append(await make_record())
    await spool.aclose()

    paths = [tmp_path / "spool", *segment.list_segments(tmp_path / "spool")]
    assert [path.stat().st_mode & 0o077 for path in paths] == [0, 0]


@settings(deadline=None)  # others use this machine too
@given(st.lists(st.binary(min_size=1, max_size=40).filter(lambda data: b"\n" not in data), max_size=6), st.data())
def test_a_segment_cut_anywhere_reads_as_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, datas: list[bytes], draw: st.DataObject
) -> None:
    whole = b"".join(segment.line_of(data) for data in datas)
    cut = draw.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.getbasetemp() / "cut.seg"
    path.write_bytes(whole[:cut])

    lines = list(segment.read_lines(path))

    assert [line.data for line in lines] == datas[: len(lines)]
    rest = cut - (lines[-1].end if lines else 0)
    assert rest == 0 or rest < len(segment.line_of(datas[len(lines)]))


def test_a_flipped_bit_is_found_and_the_lines_after_it_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w0.1.seg"
    first, second = segment.line_of(b'{"a":1}'), segment.line_of(b'{"b":2}')
    path.write_bytes(first.replace(b"1}", b"3}") + second)

    assert [line.data for line in segment.read_lines(path)] == [None, b'{"b":2}']
