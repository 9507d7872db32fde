"""Lists of calls and sums over them, on SQLite and on Postgres."""

from __future__ import annotations

from dataclasses import replace

import pytest

from logging_layer.listing import CallListing, ListingDown, Wanted
from logging_layer.record import CallRecord
from logging_layer.sql_sink import SqlSink
from orchestration.core import CacheStatus
from tests.logging_layer.samples import batch_of, make_record


async def store(url: str, *records: CallRecord) -> None:
    sink = SqlSink(url)
    await sink.send(batch_of(records))
    await sink.aclose()


async def sample() -> list[CallRecord]:
    """Make four calls of two tenants; ids sort as they were made."""
    base = await make_record()
    base = replace(base, cache=replace(base.cache, threshold=None))
    hit = replace(base.cache, threshold=0.95, status=CacheStatus.SEMANTIC, similarity=0.97)
    return [
        replace(base, id="01A", tenant="a", requested_model="small", cost_usd=0.5, received_at=100.0),
        replace(base, id="01B", tenant="b", requested_model="large", cost_usd=2.0, received_at=200.0),
        replace(base, id="01C", tenant="a", requested_model="large", cost_usd=0.25, received_at=300.0),
        replace(base, id="01D", tenant="a", requested_model="small", cost_usd=None, received_at=400.0, cache=hit),
    ]


async def test_calls_are_listed_newest_first_and_page_by_page(database_url: str) -> None:
    await store(database_url, *await sample())
    listing = CallListing(database_url)

    none = await listing.find(Wanted(tenant="a\0"), limit=3)
    first = await listing.find(Wanted(), limit=3)
    second = await listing.find(Wanted(before=first[-1]["id"]), limit=3)
    await listing.aclose()

    assert none == []
    assert [row["id"] for row in first] == ["01D", "01C", "01B"]
    assert [row["id"] for row in second] == ["01A"]
    assert first[0]["record"]["content"]["request"]["model"] == "small"


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Wanted(tenant="a"), ["01D", "01C", "01A"]),
        (Wanted(model="large"), ["01C", "01B"]),
        (Wanted(tenant="a", model="large"), ["01C"]),
        (Wanted(cache="semantic"), ["01D"]),
        (Wanted(outcome="error"), []),
        (Wanted(is_decision=True), ["01D"]),
        (Wanted(is_decision=False), ["01C", "01B", "01A"]),
        (Wanted(tenant="' or 1=1 --"), []),
    ],
)
async def test_only_what_is_wanted_is_listed(tmp_path: object, wanted: Wanted, ids: list[str]) -> None:
    url = f"sqlite:///{tmp_path}/lamina.db"
    await store(url, *await sample())
    listing = CallListing(url)

    found = await listing.find(wanted, limit=10)
    await listing.aclose()

    assert [row["id"] for row in found] == ids


async def test_sums_are_by_a_column_the_dearest_first(database_url: str) -> None:
    await store(database_url, *await sample())
    listing = CallListing(database_url)

    by_tenant = await listing.sums("tenant", since=0.0)
    late = await listing.sums("requested_model", since=250.0)
    with pytest.raises(ValueError, match="summed by one of"):
        await listing.sums("record", since=0.0)
    await listing.aclose()

    assert [(row["tenant"], row["calls"], row["cost_usd"]) for row in by_tenant] == [("b", 1, 2.0), ("a", 3, 0.75)]
    assert [row["prompt_tokens"] for row in by_tenant] == [12, 36]
    assert [(row["requested_model"], row["calls"]) for row in late] == [("large", 1), ("small", 1)]


async def test_a_database_without_the_table_has_no_calls(database_url: str) -> None:
    listing = CallListing(database_url)

    assert await listing.find(Wanted(), limit=10) == []
    assert await listing.sums("tenant", since=0.0) == []
    await listing.aclose()


async def test_a_database_that_does_not_answer_is_told_without_its_url() -> None:
    listing = CallListing("postgresql+psycopg2://user:secret@127.0.0.1:1/none")

    with pytest.raises(ListingDown) as down:
        await listing.find(Wanted(), limit=1)
    await listing.aclose()

    assert "secret" not in str(down.value)
