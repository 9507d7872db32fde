"""The index on disk, written at a graceful end, so that the next start reads one file instead of all of Redis."""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cache.index import Row

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Whole partitions by name, as they were after the change `change_id` of the stream."""

    change_id: str
    partitions: tuple[tuple[str, tuple[Row, ...]], ...]


def write_snapshot(path: Path, snapshot: Snapshot, *, revision: str) -> None:
    """Replace the file at `path`, at once or not at all; raises `OSError` where that cannot be."""
    rows = [row for _, part in snapshot.partitions for row in part]
    description = {
        "revision": revision,
        "change_id": snapshot.change_id,
        "partitions": [[name, len(part)] for name, part in snapshot.partitions],
        "entries": [row.entry for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as file:
        np.savez(
            file,
            description=np.frombuffer(json.dumps(description).encode(), np.uint8),
            expires_at=np.array([row.expires_at for row in rows], np.float64),
            vectors=np.stack([row.vector for row in rows]) if rows else np.empty((0, 0), np.float32),
        )
    unfinished.replace(path)


def read_snapshot(path: Path, *, revision: str) -> Snapshot | None:
    """Return what was written for this embedder's revision, or None; a damaged file is logged and is none."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            description = json.loads(arrays["description"].tobytes())
            if description["revision"] != revision:
                return None
            vectors, expires_at = arrays["vectors"], arrays["expires_at"]
        rows = [
            Row(entry, vector, float(ends))
            for entry, vector, ends in zip(description["entries"], vectors, expires_at, strict=True)
        ]
        return Snapshot(description["change_id"], tuple(_split(description["partitions"], rows)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
        logger.warning("index.snapshot_unreadable: %s", exc)
        return None


def _split(counts: list[tuple[str, int]], rows: list[Row]) -> Iterable[tuple[str, tuple[Row, ...]]]:
    begin = 0
    for name, count in counts:
        yield name, tuple(rows[begin : begin + count])
        begin += count
