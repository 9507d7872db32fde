"""What is said in MLflow and what is said to the gateway is the same label, against a real MLflow."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from logging_layer import mlflow_api
from logging_layer.assessments import NAMES, newest_of
from logging_layer.chore import Chore
from logging_layer.label_exchange import LabelExchange
from logging_layer.labels import Label, LabelBook, LabelSource
from logging_layer.mlflow_api import MlflowApi
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.reader import CallReader
from logging_layer.record import CallRecord
from logging_layer.sink import SinkDown
from logging_layer.spans import trace_id_of
from logging_layer.sql_sink import SqlSink
from logging_layer.worker_feedback import WorkerFeedback
from orchestration.core.errors import NotFound, Unavailable
from orchestration.core.rpc import RpcServer
from tests.logging_layer.samples import Mlflow, batch_of, make_record, make_records


@dataclass
class Gateway:
    """Keep words as the gateway does; a call whose record it has not is not known."""

    book: LabelBook
    known: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    is_down: bool = False

    async def take(self, call: str, *, is_correct: bool, note: str, source: LabelSource) -> bool:
        if self.is_down:
            raise SinkDown("no worker")
        if call not in self.known:
            return False
        self.taken.append(call)
        await self.book.add([Label(call, source, is_correct, time.time(), note=note)])
        return True


@dataclass
class World:
    """An MLflow experiment, a database, and the exchange between them."""

    mlflow: Mlflow
    experiment: str
    folder: Path
    book: LabelBook
    gateway: Gateway
    exchange: LabelExchange

    async def show(self, *records: CallRecord) -> None:
        """Bring calls to SQL and MLflow."""
        sink = MlflowSink(self.mlflow.uri, experiment=self.experiment)
        await sink.send(batch_of(records))
        await sink.aclose()
        await self.record(*records)

    async def record(self, *records: CallRecord) -> None:
        """Bring calls to SQL alone."""
        sink = SqlSink(f"sqlite:///{self.folder}/lamina.db")
        await sink.send(batch_of(records))
        await sink.aclose()
        self.gateway.known |= {record.id for record in records}

    def assess(self, call: str, value: object, *, name: str = "correct", type: str = "HUMAN") -> None:
        """Say something as MLflow's page does."""
        trace = trace_of(call)
        body = {
            "assessment_name": name,
            "trace_id": trace,
            "source": {"source_type": type, "source_id": "ann"},
            "feedback": {"value": value},
            "rationale": "wrong city",
        }
        url = f"{self.mlflow.uri}/api/3.0/mlflow/traces/{trace}/assessments"
        httpx.post(url, json={"assessment": body}, timeout=30.0).raise_for_status()

    def said(self, call: str) -> list[dict[str, Any]]:
        """Return what MLflow holds about a call."""
        trace = self.mlflow.trace(trace_of(call))
        assessments: list[dict[str, Any]] = trace["trace_info"].get("assessments", [])
        return assessments


def trace_of(call: str) -> str:
    return f"tr-{trace_id_of(call).hex()}"


@asynccontextmanager
async def a_world(mlflow: Mlflow, folder: Path) -> AsyncIterator[World]:
    experiment, url = f"labels-{time.time_ns()}", f"sqlite:///{folder}/lamina.db"
    book = LabelBook(url)
    gateway = Gateway(book)
    exchange = LabelExchange(
        folder,
        MlflowApi(mlflow.uri, experiment=experiment),
        book=book,
        taker=gateway,
        calls=CallReader(url, folder, patience_s=0.0),
        sink=MlflowSink(mlflow.uri, experiment=experiment),
    )
    try:
        yield World(mlflow, experiment, folder, book, gateway, exchange)
    finally:
        await exchange.aclose()


async def test_what_is_said_in_mlflow_is_a_label_once_and_is_not_written_back(mlflow: Mlflow, tmp_path: Path) -> None:
    async with a_world(mlflow, tmp_path) as world:
        right, wrong, judged, other = await make_records(4)
        await world.show(right, wrong, judged, other)
        world.assess(right.id, True)
        world.assess(wrong.id, False)
        world.assess(judged.id, "no", name="correctness", type="LLM_JUDGE")
        world.assess(other.id, 4, name="helpfulness")

        for _ in range(3):
            await world.exchange.step()

        known = await world.book.of([right.id, wrong.id, judged.id, other.id])
        assert {key: label.is_correct for key, label in known.items()} == {
            (right.id, LabelSource.HUMAN): True,
            (wrong.id, LabelSource.HUMAN): False,
            (judged.id, LabelSource.JUDGE): False,
        }
        assert known[wrong.id, LabelSource.HUMAN].note == "MLflow, ann: wrong city"
        assert sorted(world.gateway.taken) == sorted([right.id, wrong.id, judged.id])
        assert [len(world.said(record.id)) for record in (right, wrong, judged)] == [1, 1, 1]


async def test_every_page_of_either_name_is_looked_at_after_some_steps(
    mlflow: Mlflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_api, "PAGE", 2)
    async with a_world(mlflow, tmp_path) as world:
        records = await make_records(10)
        await world.show(*records)
        for number, record in enumerate(records):
            world.assess(record.id, "no", name=NAMES[number % 2])

        for _ in range(3):
            await world.exchange.step()

        assert sorted(world.gateway.taken) == sorted(record.id for record in records)


async def test_feedback_to_the_gateway_is_an_assessment_and_the_last_word_holds_on_both_sides(
    mlflow: Mlflow, tmp_path: Path
) -> None:
    async with a_world(mlflow, tmp_path) as world:
        record = await make_record()
        await world.show(record)
        await world.book.add([Label(record.id, LabelSource.HUMAN, False, time.time(), note="stale")])
        await world.exchange.step()
        first = newest_of(mlflow.trace(trace_of(record.id))["trace_info"])[LabelSource.HUMAN]
        await world.book.add([Label(record.id, LabelSource.HUMAN, True, time.time(), note="no, fine")])
        await world.exchange.step()
        second = newest_of(mlflow.trace(trace_of(record.id))["trace_info"])[LabelSource.HUMAN]
        world.assess(record.id, False)
        await world.exchange.step()
        await world.exchange.step()

        assert (first.is_correct, first.rationale, first.is_ours) == (False, "stale", True)
        assert (second.id, second.is_correct, second.rationale) == (first.id, True, "no, fine")
        label = (await world.book.of([record.id]))[record.id, LabelSource.HUMAN]
        assert (label.is_correct, label.note) == (False, "MLflow, ann: wrong city")
        assert len(world.said(record.id)) == 2


async def test_a_call_that_sampling_left_out_is_shown_once_it_has_feedback(mlflow: Mlflow, tmp_path: Path) -> None:
    async with a_world(mlflow, tmp_path) as world:
        record = await make_record()
        await world.record(record)
        await world.book.add(
            [
                Label(record.id, LabelSource.HUMAN, False, time.time()),
                Label("gone", LabelSource.HUMAN, False, time.time()),
                Label(record.id, LabelSource.SHADOW, True, time.time()),
            ]
        )

        await world.exchange.step()

        assert [one["feedback"]["value"] for one in world.said(record.id)] == [False]
        assert world.exchange.numbers() == {"taken": 0, "written": 1, "unknown": 1}


async def test_an_assessment_waits_for_a_worker_and_a_new_process_goes_on_where_this_one_was(
    mlflow: Mlflow, tmp_path: Path
) -> None:
    async with a_world(mlflow, tmp_path) as world:
        record, told = await make_records(2)
        await world.show(record, told)
        await world.book.add([Label(told.id, LabelSource.HUMAN, True, time.time() - 60.0)])
        await world.exchange.step()
        world.assess(record.id, False)
        world.gateway.is_down = True
        with pytest.raises(SinkDown):
            await world.exchange.step()
        world.gateway.is_down = False
        await world.exchange.step()
        taken = list(world.gateway.taken)

    async with a_world(mlflow, tmp_path) as again:
        await again.exchange.step()

        assert taken == [record.id]
        assert again.exchange.numbers()["written"] == 0


async def test_a_job_without_its_mlflow_says_so_and_goes_on(tmp_path: Path) -> None:
    async with a_world(Mlflow("http://127.0.0.1:1"), tmp_path) as world:
        with pytest.raises(SinkDown, match="cannot be reached"):
            await world.exchange.step()
        assert Chore(world.exchange, every_s=1.0, busy_s=1.0).name == "mlflow_labels"


async def test_feedback_goes_to_a_worker_that_answers(short_folder: Path) -> None:
    heard: list[Any] = []

    async def feedback(params: Any, _payload: bytes) -> tuple[Any, bytes]:
        if params["call"] == "nowhere":
            raise NotFound("No call 'nowhere' is known.", code="call_not_found")
        if params["call"] == "later":
            raise Unavailable("The feedback could not be kept.")
        heard.append(params)
        return None, b""

    server, workers = RpcServer({"feedback": feedback}), WorkerFeedback(short_folder)
    with pytest.raises(SinkDown, match="no worker listens"):
        await workers.take("c", is_correct=False, note="n", source=LabelSource.HUMAN)
    await server.start(short_folder / "w1.sock")
    (short_folder / "w0.sock").touch()

    assert await workers.take("c", is_correct=False, note="n", source=LabelSource.HUMAN)
    assert not await workers.take("nowhere", is_correct=False, note="n", source=LabelSource.HUMAN)
    with pytest.raises(SinkDown, match="could not be kept"):
        await workers.take("later", is_correct=False, note="n", source=LabelSource.JUDGE)

    assert heard == [{"call": "c", "is_correct": False, "note": "n", "source": "human"}]
    await server.aclose()
    for name in ("w0.sock", "w1.sock"):
        (short_folder / name).unlink(missing_ok=True)
