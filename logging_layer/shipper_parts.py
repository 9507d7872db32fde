"""What the shipper's command line asks for: its sinks, and what it does beside shipping."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logging_layer.chore import Chore, Job
from logging_layer.feed import Choice, Feed
from logging_layer.jsonl_sink import PATTERN, JsonlSink
from logging_layer.label_exchange import LabelExchange
from logging_layer.labels import LabelBook
from logging_layer.mlflow_api import MlflowApi
from logging_layer.mlflow_sink import MlflowSink
from logging_layer.otlp_sink import OtlpSink
from logging_layer.reader import CallReader
from logging_layer.retention import DAY_S, FileRetention, SqlRetention, TraceRetention
from logging_layer.sampling import lowered, weight_of
from logging_layer.sink import Sink
from logging_layer.sql_sink import SqlSink
from logging_layer.worker_feedback import WorkerFeedback
from orchestration.core import Secret

BEARABLE_BACKLOG_BYTES = 16 * 1024 * 1024
"""Some 5,000 records, half a minute of MLflow's work; beyond it fewer are sent."""


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m logging_layer.shipper",
        description="Ship call records from the spool to SQL and MLflow. Flags may stand in a file: @FILE.",
        fromfile_prefix_chars="@",  # a database's URL may hold a password, and a command line can be read by all
    )
    made.add_argument("--spool", type=Path, required=True, help="the folder that the workers spool to")
    made.add_argument("--database", required=True, help="SQLAlchemy URL, sqlite:/// or postgresql+psycopg2://")
    made.add_argument("--mlflow", help="MLflow's URI; without it nothing is sent")
    made.add_argument("--experiment", default="lamina", help="the experiment that the traces go to")
    made.add_argument("--sample", type=float, default=1.0, help="share of the uneventful calls that MLflow gets")
    made.add_argument("--otlp", action="append", default=[], help='a collector, {"url": "...", "headers": {...}}')
    made.add_argument("--jsonl", type=Path, help="a folder for files of JSON lines")
    made.add_argument("--jsonl-file-mb", type=int, default=64, help="how large such a file may become")
    made.add_argument("--jsonl-files", type=int, default=10, help="how many full ones are kept")
    made.add_argument("--jsonl-unsynced", action="store_true", help="leave it to the kernel when lines are durable")
    made.add_argument("--retention-days", type=int, help="how long texts and traces are kept; without it for good")
    made.add_argument("--workers", type=Path, help="the run's folder, whose workers take what is said in MLflow")
    made.add_argument("--socket", type=Path, help="Unix socket for `stats` and `ping`")
    made.add_argument("--log-json", action="store_true", help="write this process's own log as JSON lines")
    made.add_argument("--drain-s", type=float, default=20.0, help="how long SIGTERM may take")
    return made


def feeds_of(options: argparse.Namespace) -> list[Feed]:
    """Build a feed for SQL, which is the truth, and one for each view of it."""
    views: list[Sink] = [_collector(text) for text in options.otlp]
    if options.mlflow is not None:
        views.append(MlflowSink(options.mlflow, experiment=options.experiment))
    feeds = [Feed(options.spool, SqlSink(options.database))]
    if options.jsonl is not None:
        feeds.append(Feed(options.spool, _lines(options)))
    choose = sampled(options.sample)
    return feeds + [Feed(options.spool, sink, choose=choose, linger_s=1.0, poll_s=0.25) for sink in views]


def sampled(rate: float) -> Choice:
    """Choose uneventful calls by a rate, and by a lower one where more waits than a view can bear."""

    def choose(record: Mapping[str, Any], backlog_bytes: int) -> float:
        now = lowered(rate, backlog_bytes=backlog_bytes, bearable_bytes=BEARABLE_BACKLOG_BYTES)
        return weight_of(record, rate=now)

    return choose


def _collector(text: str) -> OtlpSink:
    told = json.loads(text)
    return OtlpSink(told["url"], headers={name: Secret(value) for name, value in told.get("headers", {}).items()})


def _lines(options: argparse.Namespace) -> JsonlSink:
    return JsonlSink(
        options.jsonl,
        max_file_bytes=options.jsonl_file_mb * 1024 * 1024,
        max_files=options.jsonl_files,
        syncs=not options.jsonl_unsynced,
    )


def chores_of(options: argparse.Namespace, *, truth: Feed) -> list[Chore]:
    """Build what is done beside shipping: old things go, and labels are exchanged with MLflow."""
    jobs: list[Job] = []
    if options.retention_days is not None:
        retention_s = options.retention_days * DAY_S
        jobs = [SqlRetention(options.database, retention_s=retention_s)]
        lines = [] if options.jsonl is None else [(options.jsonl, PATTERN)]
        jobs.append(FileRetention(options.spool, retention_s=retention_s, patterns=lines, is_kept=truth.has_all))
        if options.mlflow is not None:
            api = MlflowApi(options.mlflow, experiment=options.experiment)
            jobs.append(TraceRetention(api, retention_s=retention_s))
    chores = [Chore(job, every_s=60.0, busy_s=0.2) for job in jobs]
    return [*chores, *_exchanges(options)]


def _exchanges(options: argparse.Namespace) -> list[Chore]:
    if options.mlflow is None or options.workers is None:
        return []
    exchange = LabelExchange(
        options.spool,
        MlflowApi(options.mlflow, experiment=options.experiment),
        book=LabelBook(options.database),
        taker=WorkerFeedback(options.workers),
        calls=CallReader(options.database, options.spool),
        sink=MlflowSink(options.mlflow, experiment=options.experiment),
    )
    return [Chore(exchange, every_s=5.0, busy_s=1.0)]
