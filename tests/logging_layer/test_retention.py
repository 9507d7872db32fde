"""What is too old goes, and nothing else does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sqlalchemy import func, select

from logging_layer import segment
from logging_layer.codec import decode
from logging_layer.database import calls, open_database
from logging_layer.feed import Feed
from logging_layer.labels import Label, LabelBook, LabelSource
from logging_layer.mlflow_api import MlflowApi
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.policies import PolicyHistory
from logging_layer.reader import CallReader
from logging_layer.record import CallRecord, Failure
from logging_layer.retention import DAY_S, LEFT_OUT, FileRetention, SqlRetention, TraceRetention, without_texts
from logging_layer.sql_sink import SqlSink
from tests.logging_layer.samples import Mlflow, batch_of, make_record, make_records, spooled
from tests.logging_layer.test_shipping import count, spool_of

NOW = 1_790_000_000.0


async def aged(days: float, *, count: int = 1) -> list[CallRecord]:
    return [replace(record, received_at=NOW - days * DAY_S) for record in await make_records(count)]


async def write(url: str, records: Sequence[CallRecord]) -> None:
    sink = SqlSink(url)
    await sink.send(batch_of(records))
    await sink.aclose()


async def swept(url: str, *, retention_days: float) -> dict[str, float]:
    job = SqlRetention(url, retention_s=retention_days * DAY_S, clock=lambda: NOW)
    while await job.step():
        pass
    await job.aclose()
    return job.numbers()


async def test_old_rows_go_and_young_ones_labels_and_policies_stay(database_url: str) -> None:
    old, young = await aged(41, count=450), await aged(39, count=3)
    await write(database_url, [*old, *young])
    book, history = LabelBook(database_url), PolicyHistory(database_url)
    await book.add([Label(old[0].id, LabelSource.HUMAN, False, NOW - 41 * DAY_S)])
    await history.apply(policy="static", threshold=0.9, wrong_to_call_cost=25, applied_by="a", reason="r", now=1.0)

    numbers = await swept(database_url, retention_days=40)

    assert numbers == {"bared": 0, "deleted": 450}
    assert count(database_url) == 3
    assert [label.call for label in await book.since(0.0)] == [old[0].id]
    assert (await history.newest()) is not None
    await book.aclose()
    await history.aclose()


async def test_texts_go_after_a_day_and_what_was_spent_is_known_for_thirty(database_url: str, tmp_path: Path) -> None:
    gone, bared, young = (await aged(31))[0], (await aged(2))[0], (await aged(0.5))[0]
    bared = replace(bared, user="u1", session="s1", error=Failure("t", "c", message="quotes France"))
    await write(database_url, [gone, bared, young])

    numbers = [await swept(database_url, retention_days=1) for _ in range(2)]

    assert numbers == [{"bared": 1, "deleted": 1}, {"bared": 0, "deleted": 0}]
    reader = CallReader(database_url, tmp_path, patience_s=0.0)
    assert await reader.get(gone.id) is None
    assert await reader.get(young.id) == decode(young.to_json())
    left = await reader.get(bared.id)
    await reader.aclose()
    assert left is not None
    assert "France" not in json.dumps(left)
    assert left["content"]["left_out"] == [LEFT_OUT]
    assert (left["usage"], left["cache"]) == (decode(bared.to_json())["usage"], decode(bared.to_json())["cache"])
    engine = open_database(database_url)
    with engine.connect() as connection:
        spent = connection.execute(select(func.sum(calls.c.cost_usd))).scalar_one()
        row = connection.execute(select(calls.c.user_id, calls.c.session_id).where(calls.c.id == bared.id)).one()
    engine.dispose()
    assert spent == 0.00004
    assert tuple(row) == (None, None)


async def test_texts_that_went_are_not_in_the_databases_file_either(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/lamina.db"
    records = [replace(record, session="planted-secret-session") for record in await aged(2, count=20)]
    await write(url, records)

    await swept(url, retention_days=1)

    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(b"planted-secret-session" in data for data in files)


async def test_a_database_without_tables_has_nothing_old(tmp_path: Path) -> None:
    assert await swept(f"sqlite:///{tmp_path}/none.db", retention_days=1) == {"bared": 0, "deleted": 0}


async def test_a_bared_record_is_bared_once() -> None:
    record = decode((await make_record()).to_json())

    assert without_texts(without_texts(record)) == without_texts(record)


async def test_files_that_nobody_wrote_to_go_and_a_writers_segment_stays(tmp_path: Path) -> None:
    spool, lines = tmp_path / "spool", tmp_path / "lines"
    lines.mkdir()
    await spool_of(spool, await make_records(3))
    live, descriptor = segment.create(spool, worker="w1")
    old = [*segment.list_segments(spool), spool / "refused.mlflow", lines / "a.jsonl.1"]
    for path in old:
        path.open("ab").close()
        os.utime(path, (NOW - 2 * DAY_S, NOW - 2 * DAY_S))
    (lines / "b.jsonl.1").touch()
    os.utime(lines / "b.jsonl.1", (NOW, NOW))
    job = FileRetention(spool, retention_s=DAY_S, patterns=[(lines, "*.jsonl.*")], clock=lambda: NOW)

    await job.step()

    assert [path.name for path in old if path.exists()] == [live.name]
    assert (lines / "b.jsonl.1").exists()
    assert job.numbers() == {"deleted": 3}
    assert spooled(spool) == []
    os.close(descriptor)


async def test_a_segment_that_is_not_in_sql_stays_however_old_it_is(tmp_path: Path) -> None:
    await spool_of(tmp_path, await make_records(3))
    (path,) = segment.list_segments(tmp_path)
    os.utime(path, (NOW - 400 * DAY_S, NOW - 400 * DAY_S))
    feed = Feed(tmp_path, SqlSink(f"sqlite:///{tmp_path}/lamina.db"))
    job = FileRetention(tmp_path, retention_s=DAY_S, is_kept=feed.has_all, clock=lambda: NOW)

    await job.step()
    is_there = path.exists()
    await feed.step(is_last=True)
    await job.step()

    assert (is_there, path.exists()) == (True, False)
    await feed.aclose()


async def test_old_traces_go_from_mlflow(mlflow: Mlflow) -> None:
    experiment, now = f"old-{time.time_ns()}", time.time()
    old = [replace(record, received_at=now - 3 * DAY_S) for record in await make_records(130)]
    young = await make_records(2)
    sink, api = MlflowSink(mlflow.uri, experiment=experiment), MlflowApi(mlflow.uri, experiment=experiment)
    await sink.send(batch_of([*old, *young]))
    job = TraceRetention(api, retention_s=DAY_S)

    while await job.step():
        pass

    assert {trace["tags"]["lamina.call"] for trace in mlflow.traces(experiment)} == {record.id for record in young}
    assert job.numbers() == {"deleted": 130}
    await job.aclose()
    await sink.aclose()
