from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logging_layer.tuning import Prices, Scored, ScoredFault, read_scored, sweep
from logging_layer.tuning.page import page_of
from logging_layer.tuning.report import Report, report_on
from logging_layer.tuning.shapes import expected_calibration_error, reliability
from logging_layer.tuning.study import StudyFailed, StudyWriter
from logging_layer.tuning.sweep import recommend, wilson
from tests.logging_layer.samples import Mlflow

PRICES = Prices(call_usd=0.002, wrong_usd=0.05)
ROWS = st.lists(st.builds(Scored, st.floats(-1, 1), st.sampled_from([True, False, None])), min_size=1, max_size=60)


def stream(*, hits: int, wrong: int, similarity: float, requests: int = 1000) -> list[Scored]:
    """Make a stream in which `hits` requests have a neighbour at `similarity`, `wrong` of them a wrong one."""
    return [Scored(similarity if n < hits else 0.4, n >= wrong) for n in range(requests)]


def test_the_worked_example_comes_out_to_the_cent() -> None:
    low = sweep(stream(hits=970, wrong=57, similarity=0.96), thresholds=[0.95], prices=PRICES)[0]
    high = sweep(stream(hits=961, wrong=0, similarity=0.995), thresholds=[0.99], prices=PRICES)[0]

    assert (round(low.saved_usd, 2), round(low.lost_usd, 2), round(low.value_usd, 2)) == (1.94, 2.85, -0.91)
    assert (round(high.saved_usd, 2), high.lost_usd) == (1.92, 0.0)


def test_a_similarity_of_exactly_the_bar_is_a_hit() -> None:
    assert sweep([Scored(0.95, True)], thresholds=[0.95, 0.9500001], prices=PRICES)[0].hits == 1000.0


def test_hits_that_nobody_labelled_count_as_hits_and_widen_the_interval() -> None:
    labelled = [Scored(0.99, True)] * 90 + [Scored(0.99, False)] * 10
    point = sweep([*labelled, *[Scored(0.99, None)] * 900], thresholds=[0.9], prices=PRICES)[0]

    assert (point.hits, point.wrong, point.num_labelled) == (1000.0, 100.0, 100)
    assert point.wrong_per_hit.low < 0.1 < point.wrong_per_hit.high


def test_hits_below_every_label_may_all_be_wrong() -> None:
    rows = [Scored(0.99, True)] * 400 + [Scored(0.85, None)] * 100
    low, high = sweep(rows, thresholds=[0.8, 0.95], prices=PRICES)

    assert low.wrong_per_request.high >= 0.2
    assert high.wrong_per_request.high < 0.01
    assert recommend([low, high]) == high


def test_a_dearer_mistake_never_lowers_the_recommended_bar() -> None:
    rows = [Scored(n / 1000, n % 97 > 30 * (1 - n / 1000)) for n in range(1000)]
    bars = [n / 100 for n in range(101)]
    found = [
        recommend(sweep(rows, thresholds=bars, prices=Prices(0.002, 0.002 * ratio))) for ratio in (1.01, 2, 5, 10, 25)
    ]

    chosen = [point.threshold if point else math.inf for point in found]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_nothing_is_recommended_where_no_label_vouches_for_a_hit() -> None:
    points = sweep([Scored(0.99, None)] * 50, thresholds=[0.9, 0.95], prices=PRICES)

    assert recommend(points) is None


@given(ROWS, st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=200)
def test_a_higher_bar_never_serves_more(rows: list[Scored], one: float, other: float) -> None:
    low, high = sweep(rows, thresholds=sorted((one, other)), prices=PRICES)

    assert high.hits <= low.hits
    assert high.wrong_per_trap.value <= low.wrong_per_trap.value


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_holds_the_share_and_stays_in_bounds(successes: int, extra: int) -> None:
    rate = wilson(successes, successes + extra)

    assert 0.0 <= rate.low <= rate.value <= rate.high <= 1.0


def test_wilsons_interval_is_the_published_one() -> None:
    rate = wilson(10, 100)

    assert (round(rate.low, 4), round(rate.high, 4)) == (0.0552, 0.1744)


def test_a_calibrated_scorer_has_no_calibration_error() -> None:
    rows = [Scored(0.9, n < 80, p_correct=0.8) for n in range(100)]

    assert expected_calibration_error(reliability(rows)) == pytest.approx(0.0)
    assert expected_calibration_error(reliability([Scored(0.9, True)])) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is no JSON"),
        ("[]", "line 2: expected an object"),
        ('{"similarity": "0.9", "correct": true}', "line 2: `similarity` is a number from -1 to 1, not '0.9'"),
        ('{"similarity": 1.2, "correct": true}', "`similarity` is a number from -1 to 1, not 1.2"),
        ('{"similarity": NaN, "correct": true}', "`similarity` is a number"),
        ('{"similarity": true, "correct": true}', "`similarity` is a number"),
        ('{"similarity": 0.9, "correct": 1}', "`correct` is true, false or null, not 1"),
        ('{"similarity": 0.9, "question": 3}', "`question` is a text, not 3"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"similarity": 0.9, "correct": true}}\n{line}\n')

    with pytest.raises(ScoredFault, match="line 2") as caught:
        read_scored(path)
    assert said in str(caught.value)


def test_an_empty_file_is_refused_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n")

    with pytest.raises(ScoredFault, match="has no rows"):
        read_scored(tmp_path / "rows.jsonl")


def test_a_callers_text_cannot_leave_the_pages_data() -> None:
    hostile = "</script><script>alert(1)</script><!-- & /*SCRIPT*/"
    rows = [Scored(0.99, False, question=hostile, call="01"), *stream(hits=5, wrong=0, similarity=0.97, requests=9)]

    page = page_of(sample(rows), trace_url=lambda call: f"http://127.0.0.1/{call}")

    assert page.count("<script") == 2
    data = page.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["wrong"][0]["question"] == hostile


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = page_of(sample(stream(hits=5, wrong=1, similarity=0.97, requests=9)))

    assert "src=" not in page
    assert "@import" not in page
    assert page.count("http") == page.count("http://www.w3.org/2000/svg")


async def test_a_sweep_is_one_run_with_its_curves_and_its_page(mlflow: Mlflow) -> None:
    rows = [Scored(0.9 + n / 10_000, n % 10 > 1, policy="cosine") for n in range(1000)]
    rows += [Scored(0.9 + n / 10_000, n % 10 > 1, policy="guarded") for n in range(900)]
    writer = StudyWriter(mlflow.uri)

    study = await writer.write(sample(rows), params={"source": "a test"})
    await writer.aclose()

    run = mlflow.get("runs/get", run_id=study.run_id)["run"]
    assert run["info"]["status"] == "FINISHED"
    assert {"source", "recommended_threshold", "cost_wrong_usd"} <= {one["key"] for one in run["data"]["params"]}
    curve = mlflow.get("metrics/get-history", run_id=study.run_id, metric_key="hit_rate")["metrics"]
    assert [one["step"] for one in curve] == list(range(900, 1001))
    files = {one["path"] for one in mlflow.get("artifacts/list", run_id=study.run_id)["files"]}
    assert files == {"tradeoff.html", "sweep.json"}


async def test_an_mlflow_that_is_not_there_is_named() -> None:
    writer = StudyWriter("http://127.0.0.1:9")

    with pytest.raises(StudyFailed, match=r"127\.0\.0\.1:9 cannot be reached"):
        await writer.write(sample([Scored(0.9, True)]), params={})
    await writer.aclose()


def sample(rows: list[Scored]) -> Report:
    """Sweep rows over a hundred bars."""
    return report_on(rows, dataset="sample", thresholds=[0.9 + n / 1000 for n in range(101)], prices=PRICES)
