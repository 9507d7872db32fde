from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from logging_layer.labels import Label, LabelBook, LabelsDown, LabelSource
from logging_layer.sql_sink import SqlSink
from logging_layer.tuning.live import read_live
from tests.logging_layer.samples import batch_of, make_record


async def test_a_source_may_change_its_mind_and_another_one_stays(database_url: str) -> None:
    book = LabelBook(database_url)
    first = Label("c1", LabelSource.HUMAN, is_correct=False, labelled_at=1.0, entry="e", similarity=0.97)

    await book.add([first, Label("c1", LabelSource.SHADOW, is_correct=None, labelled_at=2.0)])
    await book.add([replace(first, is_correct=True, labelled_at=3.0)])

    kept = await book.since(0.0)
    assert [(label.source, label.is_correct) for label in kept] == [
        (LabelSource.SHADOW, None),
        (LabelSource.HUMAN, True),
    ]
    assert await book.since(2.5) == [replace(first, is_correct=True, labelled_at=3.0)]
    await book.aclose()


async def test_a_database_that_is_away_is_said_so(tmp_path: Path) -> None:
    book = LabelBook("postgresql+psycopg2://nobody@127.0.0.1:9/none")

    with pytest.raises(LabelsDown, match="cannot be written"):
        await book.add([Label("c", LabelSource.HUMAN, is_correct=True, labelled_at=0.0)])
    await book.aclose()


async def test_the_log_reads_as_a_stream_with_the_most_trusted_label(database_url: str) -> None:
    sink, book = SqlSink(database_url), LabelBook(database_url)
    records = [await make_record() for _ in range(3)]
    await sink.send(batch_of(records))
    await book.add(
        [
            Label(records[0].id, LabelSource.SHADOW, is_correct=True, labelled_at=1.0),
            Label(records[0].id, LabelSource.HUMAN, is_correct=False, labelled_at=0.5),
            Label(records[1].id, LabelSource.SHADOW, is_correct=None, labelled_at=1.0),
        ]
    )

    rows = {row.call: row for row in read_live(database_url)}

    assert [rows[record.id].is_correct for record in records] == [False, None, None]
    assert rows[records[0].id].similarity == 0.71
    assert rows[records[0].id].question == "What is the capital of France?"
    await sink.aclose()
    await book.aclose()
