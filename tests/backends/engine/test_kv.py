from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.kv.cache import Holding, KvCache
from backends.engine.kv.pool import PagePool


def test_a_page_freed_twice_is_caught() -> None:
    pool = PagePool(4)
    pages = pool.take(2)
    pool.give_back(pages)

    with pytest.raises(AssertionError, match="is FREE"):
        pool.give_back(pages[:1])


def test_a_page_that_its_owner_forgot_is_caught() -> None:
    pool = PagePool(4)
    pages = pool.take(2)

    with pytest.raises(AssertionError, match="an owner's count differs"):
        pool.check(held=pages[:1], cached=())


def test_a_page_with_two_owners_is_caught() -> None:
    pool = PagePool(4)
    pages = pool.take(1)

    with pytest.raises(AssertionError, match="two owners"):
        pool.check(held=pages, cached=pages)


def test_freed_pages_come_back_in_order() -> None:
    pool = PagePool(8)
    pool.take(2)
    pages = pool.take(3)
    pool.give_back(pages)

    assert pool.take(4) == [2, 3, 4, 5]


def _compute(kv: KvCache, tokens: list[int], *, salt: str = "") -> Holding:
    holding = kv.open(salt, tokens)
    assert kv.grow(holding, len(tokens))
    kv.publish(holding, tokens, len(tokens))
    return holding


def test_two_who_computed_the_same_end_up_with_the_same_pages() -> None:
    kv = KvCache(num_pages=8, page_size=2, prefix_cache=True)
    tokens = [1, 2, 3, 4, 5]
    holdings = [kv.open("", tokens) for _ in range(2)]
    for holding in holdings:
        assert kv.grow(holding, 5)
    for holding in holdings:
        kv.publish(holding, tokens, 5)

    assert holdings[0].pages[:2] == holdings[1].pages[:2]
    assert holdings[0].pages[2] != holdings[1].pages[2]
    assert kv.pool.num_free == 4
    kv.check(holdings)


def test_the_least_recently_used_end_is_evicted_first() -> None:
    kv = KvCache(num_pages=6, page_size=1, prefix_cache=True)
    old, new = [1, 2, 3], [4, 5, 6]
    for tokens in (old, new, old):
        kv.close(_compute(kv, tokens), tokens, num_computed=3)

    other = kv.open("", [9, 9])
    assert kv.grow(other, 2)

    assert len(kv.open("", [*old, 0]).pages) == 3
    assert len(kv.open("", [*new, 0]).pages) == 1


def test_what_is_in_use_is_never_evicted() -> None:
    kv = KvCache(num_pages=4, page_size=1, prefix_cache=True)
    holding = _compute(kv, [1, 2, 3])
    other = kv.open("", [7, 8])

    assert not kv.grow(other, 2)
    assert other.pages == []
    kv.check([holding, other])


def test_closing_twice_is_harmless() -> None:
    kv = KvCache(num_pages=4, page_size=1, prefix_cache=True)
    holding = _compute(kv, [1, 2, 3])
    for _ in range(2):
        kv.close(holding, [1, 2, 3], num_computed=3)

    kv.check([])
    assert kv.num_available == 4


def test_a_salt_without_pages_leaves_no_root() -> None:
    kv = KvCache(num_pages=2, page_size=1, prefix_cache=True)
    for salt in map(str, range(50)):
        kv.close(_compute(kv, [1, 2], salt=salt), [1, 2], num_computed=2)

    assert {node.salt for node in kv.tree.nodes()} == {"49"}
    assert len(kv.tree._roots) == 1


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 2, 3]), num_pages=st.integers(3, 24))
def test_a_prefix_found_is_the_longest_that_was_computed_and_not_evicted(
    seed: int, page_size: int, num_pages: int
) -> None:
    draw = random.Random(seed)
    kv = KvCache(num_pages=num_pages, page_size=page_size, prefix_cache=True)
    written: dict[int, tuple[str, tuple[int, ...]]] = {}  # the page's salt, and all tokens up to its end
    live: list[tuple[Holding, list[int], str]] = []
    for _ in range(40):
        if live and draw.random() < 0.4:
            holding, tokens, _ = live.pop(draw.randrange(len(live)))
            kv.close(holding, tokens, num_computed=draw.choice([0, len(tokens)]))
        else:
            salt, tokens = draw.choice("ab"), [draw.randrange(2) for _ in range(draw.randint(1, 9))]
            holding = kv.open(salt, tokens)
            assert len(holding.pages) * page_size < len(tokens)
            for index, page in enumerate(holding.pages):
                assert written[page] == (salt, tuple(tokens[: (index + 1) * page_size]))
            if kv.grow(holding, len(tokens)):
                for index in range(holding.num_shared, len(tokens) // page_size):
                    written[holding.pages[index]] = (salt, tuple(tokens[: (index + 1) * page_size]))
                kv.publish(holding, tokens, draw.randint(0, len(tokens)))
                live.append((holding, tokens, salt))
            else:
                kv.close(holding, tokens, num_computed=0)
        kv.check([holding for holding, _, _ in live])
    for holding, tokens, _ in live:
        kv.close(holding, tokens, num_computed=len(tokens))
    kv.check([])
    assert kv.num_available == num_pages
