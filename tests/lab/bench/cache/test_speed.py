from __future__ import annotations

import numpy as np
import pytest

from lab.bench.cache.large import measure_large
from lab.bench.cache.latency import measure_latency
from lab.bench.cache.scale import measure_in_memory
from lab.bench.cache.speed_report import show
from lab.bench.cache.synthetic import DIM, Texts


def test_made_vectors_lie_as_wordings_of_an_intent_do() -> None:
    texts = Texts(400)
    kept = np.concatenate(list(texts.wordings(400)))
    nearest = np.sort(texts.questions(50) @ kept.T, axis=1)[:, -1]

    assert kept.shape == (400, DIM)
    assert np.linalg.norm(kept, axis=1) == pytest.approx(np.ones(400), abs=1e-5)
    assert 0.7 < np.median(nearest) < 0.95


@pytest.mark.long
def test_every_way_of_searching_is_measured_against_all_rows() -> None:
    ways = measure_large(1500)

    assert ways[0]["recall_at_1"] == 1.0
    assert ways[1]["name"].startswith("ours: IVF")
    assert ways[1]["recall_at_5"] >= 0.95
    assert {way["name"].split()[0] for way in ways} == {"all", "ours:", "FAISS", "IVF", "HNSW"}


def test_entries_over_partitions_are_measured_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    found = measure_in_memory(500)

    assert (found.num_entries, found.num_partitions) == (500, 500)
    assert 0 < found.p50_us <= found.p95_us
    show({"what": "scale", "tables": {"in memory": [{"entries": 500, "p50_us": found.p50_us}]}, "load_average": 0.5})
    assert "load average 0.5" in capsys.readouterr().out


@pytest.mark.long
def test_hits_of_a_real_server_are_told_apart() -> None:
    found = measure_latency(requests=20, entries=100)

    rows = {row["case"]: row for row in found["rows"]}
    assert rows["exact hit"]["otherwise"] == 0
    assert rows["semantic hit, a text never seen"]["otherwise"] <= 4
    assert rows["exact hit"]["cpu_ms"] < rows["semantic hit, a text never seen"]["cpu_ms"]
