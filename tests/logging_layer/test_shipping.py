"""From the spool to the sinks: each call once, whoever crashes where."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sqlalchemy import func, select

from logging_layer import segment
from logging_layer.database import calls, open_database
from logging_layer.feed import Feed
from logging_layer.reader import CallReader
from logging_layer.record import CallRecord
from logging_layer.shipper import Shipper
from logging_layer.sink import Shipped, Sink, SinkDown, SinkRefused
from logging_layer.spool import Spool, SpoolLimits
from logging_layer.sql_sink import SqlSink
from tests.logging_layer.samples import make_record, make_records, spooled


@dataclass
class Memory:
    """A sink that keeps records by call, and fails as it is told."""

    name: str = "memory"
    max_records: int = 10
    kept: dict[str, bytes] = field(default_factory=dict)
    num_sent: int = 0
    is_down: bool = False
    refuses: frozenset[str] = frozenset()
    has_sent: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, records: Sequence[Shipped]) -> None:
        if self.is_down:
            raise SinkDown("down")
        if self.refuses & {str(shipped.record["id"]) for shipped in records}:
            raise SinkRefused("no")
        self.num_sent += len(records)
        self.has_sent.set()
        self.kept.update({str(shipped.record["id"]): shipped.data for shipped in records})

    async def aclose(self) -> None:
        pass


async def spool_of(folder: Path, records: Sequence[CallRecord], *, worker: str = "w0", max_bytes: int = 10**9) -> None:
    """Write records into a spool whose worker is gone."""
    spool = Spool(folder, worker=worker, limits=SpoolLimits(max_segment_bytes=max_bytes))
    await spool.start()
    for record in records:
        spool.append(record)
        if max_bytes < 10**9:
            await spool.flush()
    await spool.aclose()


async def ship(folder: Path, *sinks: Sink) -> Shipper:
    """Ship everything that is there, then end."""
    stopping = asyncio.Event()
    stopping.set()
    shipper = Shipper(folder, [Feed(folder, sink) for sink in sinks])
    shipper.start()
    await shipper.run(stopping)
    await shipper.aclose()
    return shipper


def count(url: str) -> int:
    engine = open_database(url)
    try:
        with engine.connect() as connection:
            return connection.execute(select(func.count()).select_from(calls)).scalar_one()
    finally:
        engine.dispose()


async def test_every_record_arrives_once_whole_and_is_read_back(database_url: str, tmp_path: Path) -> None:
    records = await make_records(1203)
    await spool_of(tmp_path / "spool", records)

    await ship(tmp_path / "spool", SqlSink(database_url))

    assert count(database_url) == 1203
    reader = CallReader(database_url, tmp_path / "spool")
    assert await reader.get(records[700].id) == json.loads(records[700].to_json())
    assert await reader.get("nobody") is None
    await reader.aclose()


async def test_columns_say_what_the_record_says(database_url: str, tmp_path: Path) -> None:
    record = await make_record(user="u1")
    await spool_of(tmp_path / "spool", [record])

    await ship(tmp_path / "spool", SqlSink(database_url))

    engine = open_database(database_url)
    with engine.connect() as connection:
        row = connection.execute(select(calls)).one()._asdict()
    engine.dispose()
    assert (row["tenant"], row["outcome"], row["cache_status"]) == ("tenant-a", "answered", "miss")
    assert (row["prompt_tokens"], row["cached_tokens"], row["cost_usd"]) == (12, 4, 0.00002)
    assert (row["user_id"], row["is_streamed"], row["cache_threshold"]) == ("u1", False, 0.95)
    assert row["received_at"] == record.received_at


async def test_sending_again_changes_nothing(database_url: str, tmp_path: Path) -> None:
    records = [Shipped(record.to_json()) for record in await make_records(5)]
    sink = SqlSink(database_url)

    await sink.send(records[:3])
    await sink.send(records)

    assert count(database_url) == 5
    await sink.aclose()


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "naïve 🜲", "'; DROP TABLE calls; --"])
async def test_any_text_can_be_kept(database_url: str, tmp_path: Path, text: str) -> None:
    record = await make_record(user=text, stop=[text])
    await spool_of(tmp_path / "spool", [record])

    shipper = await ship(tmp_path / "spool", SqlSink(database_url))

    assert shipper.stats()["sql_refused"] == 0
    reader = CallReader(database_url, tmp_path / "spool")
    found = await reader.get(record.id)
    assert found is not None
    assert found["content"]["request"]["stop"] == [text]
    await reader.aclose()


async def test_a_crash_between_the_sink_and_its_progress_is_no_double(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    await spool_of(folder, await make_records(20))
    copies = [(path, path.read_bytes()) for path in segment.list_segments(folder)]
    await ship(folder, SqlSink(database_url))
    for path, data in copies:  # as if the process had died before it could note its progress
        path.write_bytes(data)
    (folder / "sql.progress").unlink()

    await ship(folder, SqlSink(database_url))

    assert count(database_url) == 20
    assert segment.list_segments(folder) == []


async def test_a_sink_that_is_down_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    up, down = Memory("up"), Memory("down", is_down=True)
    await spool_of(tmp_path, await make_records(25))

    first = await ship(tmp_path, up, down)
    still_there = len(segment.list_segments(tmp_path))
    down.is_down = False
    await ship(tmp_path, up, down)

    assert (len(up.kept), up.num_sent, len(down.kept)) == (25, 25, 25)
    assert first.problems() == {"down": "down"}
    assert still_there == 1
    assert segment.list_segments(tmp_path) == []


async def test_a_segment_is_deleted_only_when_every_sink_has_it(tmp_path: Path) -> None:
    up, down = Memory("up"), Memory("down", is_down=True)
    await spool_of(tmp_path, await make_records(4), max_bytes=1)

    await ship(tmp_path, up, down)

    assert len(segment.list_segments(tmp_path)) == 4


async def test_a_live_segment_is_shipped_and_stays(tmp_path: Path) -> None:
    sink = Memory()
    spool = Spool(tmp_path, worker="w0")
    await spool.start()
    for record in await make_records(3):
        spool.append(record)
    await spool.flush()

    await ship(tmp_path, sink)

    assert len(sink.kept) == 3
    assert len(segment.list_segments(tmp_path)) == 1
    await spool.aclose()


async def test_a_torn_tail_is_counted_and_the_rest_is_shipped(tmp_path: Path) -> None:
    sink = Memory()
    await spool_of(tmp_path, await make_records(3))
    (path,) = segment.list_segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])

    shipper = await ship(tmp_path, sink)

    assert len(sink.kept) == 2
    assert shipper.stats()["torn"] == 1
    assert segment.list_segments(tmp_path) == []


async def test_a_half_written_line_of_a_live_worker_is_waited_for(tmp_path: Path) -> None:
    sink = Memory()
    line = segment.line_of((await make_record()).to_json())
    path, descriptor = segment.create(tmp_path, worker="w0")

    os.write(descriptor, line[:50])
    await ship(tmp_path, sink)
    before = len(sink.kept)
    os.write(descriptor, line[50:])
    await ship(tmp_path, sink)

    assert (before, len(sink.kept)) == (0, 1)
    assert path.exists()
    os.close(descriptor)


async def test_what_a_sink_refuses_is_put_aside_and_the_rest_arrives(tmp_path: Path) -> None:
    records = await make_records(9)
    sink = Memory(refuses=frozenset({records[4].id}))
    await spool_of(tmp_path, records)

    shipper = await ship(tmp_path, sink)

    assert len(sink.kept) == 8
    assert shipper.stats()["memory_refused"] == 1
    assert (tmp_path / "refused.memory").read_bytes() == records[4].to_json() + b"\n"
    assert segment.list_segments(tmp_path) == []


async def test_a_number_that_sql_does_not_take_costs_its_own_record_alone(database_url: str, tmp_path: Path) -> None:
    records = await make_records(5)
    datas = [record.to_json() for record in records]
    datas[2] = datas[2].replace(b'"status":200', b'"status":%d' % 2**63)
    (tmp_path / "w0.1.seg").write_bytes(b"".join(map(segment.line_of, datas)))

    shipper = await ship(tmp_path, SqlSink(database_url))

    assert count(database_url) == 4
    assert shipper.stats()["sql_refused"] == 1
    assert (tmp_path / "refused.sql").read_bytes() == datas[2] + b"\n"


async def test_a_young_batch_goes_out_when_its_oldest_record_is_old_enough(tmp_path: Path) -> None:
    sink, stopping, lingers_s = Memory(), asyncio.Event(), 0.4
    record = await make_record()
    feed = Feed(tmp_path, sink, linger_s=lingers_s, poll_s=0.01)
    running = asyncio.create_task(feed.run(stopping))
    record = replace(record, received_at=time.time(), duration_ms=0.0)

    await spool_of(tmp_path, [record])
    async with asyncio.timeout(30.0):
        await sink.has_sent.wait()
    age_s = time.time() - record.received_at
    stopping.set()
    await running

    assert age_s >= lingers_s
    assert list(sink.kept) == [record.id]


async def test_lines_that_are_no_records_do_no_harm(tmp_path: Path) -> None:
    sink = Memory()
    record = await make_record()
    lines = [b"{", b"[]", b'{"id":"x"}', record.to_json(), b'{"lost":{"worker":"w0","records":2,"contents":1}}']
    (tmp_path / "w0.1.seg").write_bytes(b"".join(map(segment.line_of, lines)))

    shipper = await ship(tmp_path, sink)

    assert list(sink.kept) == [record.id]
    stats = shipper.stats()
    assert (stats["torn"], stats["lost"], stats["contents_dropped"]) == (3, 2, 1)


async def test_only_one_process_ships_a_folder(tmp_path: Path) -> None:
    first, second = Shipper(tmp_path, []), Shipper(tmp_path, [])
    first.start()

    with pytest.raises(BlockingIOError):
        second.start()

    await second.aclose()
    await first.aclose()


async def test_a_record_is_found_right_after_its_call(database_url: str, tmp_path: Path) -> None:
    spool, reader = Spool(tmp_path, worker="w0"), CallReader(database_url, tmp_path)
    await spool.start()
    record = await make_record()

    spool.append(record)
    found = await reader.get(record.id)

    assert found == json.loads(record.to_json())
    await spool.aclose()
    await reader.aclose()


async def test_a_record_is_found_while_the_database_is_away(tmp_path: Path) -> None:
    record = await make_record()
    await spool_of(tmp_path, [record])
    reader = CallReader("postgresql+psycopg2://nobody@127.0.0.1:1/none", tmp_path)

    found = await reader.get(record.id)

    assert found is not None
    await reader.aclose()


async def test_sql_that_is_away_is_a_sink_that_is_down(tmp_path: Path) -> None:
    await spool_of(tmp_path, await make_records(2))

    shipper = await ship(tmp_path, SqlSink("postgresql+psycopg2://nobody@127.0.0.1:1/none"))

    assert "sql" in shipper.problems()
    assert len(spooled(tmp_path)) == 2


async def test_an_error_of_sql_does_not_quote_the_record(database_url: str, tmp_path: Path) -> None:
    record = await make_record()
    shipped = [Shipped(record.to_json())]
    sink = SqlSink(database_url)
    await sink.send(shipped)
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE calls DROP COLUMN session_id")
    engine.dispose()

    with pytest.raises(SinkDown) as caught:
        await sink.send(shipped)

    assert "session_id" in str(caught.value)
    assert "France" not in str(caught.value)
    await sink.aclose()


@pytest.mark.parametrize("url", ["mssql+pyodbc://x", "postgresql+nothing://x", "no url"])
def test_a_database_that_cannot_be_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r"database|postgresql"):
        SqlSink(url)


def test_no_file_of_ours_imports_mlflow() -> None:
    folder = Path(segment.__file__).parents[1]
    ours = ["gateway", "cache", "validators", "orchestration", "logging_layer", "backends", "lab"]
    sources = [path for name in ours for path in (folder / name).rglob("*.py")]

    importing = re.compile(r"^\s*(import|from) mlflow\b", re.MULTILINE)

    assert [path for path in sources if importing.search(path.read_text())] == []
