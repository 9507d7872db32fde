"""Whatever is kept, taken out and invalidated in whatever order, the lists say exactly what is there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from cache.card import Card, Invalidated
from cache.catalogue import Catalogue, Wanted
from cache.redis_store import RedisStore
from tests.cache.test_catalogue import a_card, lists_of

KEYS, TAGS, TENANTS, MODELS = ("k1", "k2", "k3", "k4"), ("a", "b", "c"), ("ann", "bob"), ("m", "n")


@dataclass(frozen=True)
class Put:
    """Keep an answer that was asked for when so many of the invalidations had been heard of."""

    key: str
    tags: tuple[str, ...]
    tenant: str
    model: str
    num_unheard: int


@dataclass(frozen=True)
class Delete:
    key: str


Step = Put | Delete | Wanted
STEPS = st.lists(
    st.one_of(
        st.builds(
            Put,
            key=st.sampled_from(KEYS),
            tags=st.sets(st.sampled_from(TAGS)).map(lambda tags: tuple(sorted(tags))),
            tenant=st.sampled_from(TENANTS),
            model=st.sampled_from(MODELS),
            num_unheard=st.integers(0, 2),
        ),
        st.builds(Delete, key=st.sampled_from(KEYS)),
        st.builds(
            Wanted,
            tag=st.none() | st.sampled_from(TAGS),
            tenant=st.none() | st.sampled_from(TENANTS),
            model=st.none() | st.sampled_from(MODELS),
        ),
    ),
    max_size=25,
)


@dataclass
class Model:
    """What should be there."""

    kept: dict[str, Put] = field(default_factory=dict)
    cuts: list[Wanted] = field(default_factory=list)
    epochs: list[int] = field(default_factory=lambda: [0])

    def epoch_of(self, put: Put) -> int:
        return self.epochs[max(0, len(self.epochs) - 1 - put.num_unheard)]

    def is_refused(self, put: Put) -> bool:
        unheard = self.cuts[len(self.cuts) - put.num_unheard :] if put.num_unheard else []
        return any(covers(cut, put) for cut in unheard)

    def cut(self, wanted: Wanted) -> int:
        gone = [key for key, put in self.kept.items() if covers(wanted, put)]
        for key in gone:
            del self.kept[key]
        self.cuts.append(wanted)
        return len(gone)

    def lists(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for put in self.kept.values():
            names = {f"by:tenant:{put.tenant}", f"by:model:{put.model}", *(f"by:tag:{tag}" for tag in put.tags)}
            for name in {"all", "value", "size", *names}:
                sums[name] = sums.get(name, 0) + 1
        return sums


def covers(wanted: Wanted, put: Put) -> bool:
    return wanted.tag in (None, *put.tags) and wanted.tenant in (None, put.tenant) and wanted.model in (None, put.model)


def card_of(put: Put, *, number: int, epoch: int) -> Card:
    id = f"{put.key}-{number}"
    return a_card(id, tags=put.tags, tenant=put.tenant, model=put.model, real_model=put.model, epoch=epoch)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_lists_say_what_is_there_after_any_steps(valkey_url: str, steps: list[Step]) -> None:
    async def run() -> None:
        async with Redis.from_url(valkey_url) as raw:
            await raw.flushall()
        store, catalogue, model = RedisStore(valkey_url, timeout_s=60.0), Catalogue(valkey_url, timeout_s=60.0), Model()
        for number, step in enumerate(steps):
            await _do(step, store, catalogue, model, number=number)
        assert {key for key in KEYS if await store.get(key) is not None} == set(model.kept)
        assert await lists_of(valkey_url) == model.lists()
        assert (await catalogue.totals()).whole.entries == len(model.kept)
        await store.aclose()
        await catalogue.aclose()

    asyncio.run(run())


async def _do(step: Step, store: RedisStore, catalogue: Catalogue, model: Model, *, number: int) -> None:
    match step:
        case Put():
            is_refused = model.is_refused(step)
            try:
                await store.put(
                    step.key, b"1", ttl_s=60.0, card=card_of(step, number=number, epoch=model.epoch_of(step))
                )
            except Invalidated:
                assert is_refused
            else:
                assert not is_refused
                model.kept[step.key] = step
        case Delete():
            await store.delete(step.key)
            model.kept.pop(step.key, None)
        case Wanted():
            taken = await catalogue.invalidate(step, note={})
            assert taken.count == model.cut(step)
            model.epochs.append(await catalogue.count_hits({}))
