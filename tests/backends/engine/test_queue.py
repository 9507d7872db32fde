from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.sched.policy import rank
from backends.engine.sched.queue import ByRank, FairShare
from backends.engine.sched.request import Request
from backends.engine.types import SamplingParams, Submission
from tests.backends.engine.fakes import Bench, answer, config, submission


def _request(key: int, *, salt: str = "", place_s: float = 0.0, length: int = 1) -> Request:
    return Request(key, Submission((1,) * length, SamplingParams(max_tokens=1), salt), 0, place_s)


def _bench_with_a_misfit(**changes: object) -> tuple[Bench, int, int]:
    """Return an engine where one runs in 5 of 8 pages for 8 steps more, and a next one wants 6 pages."""
    bench = Bench(config(num_pages=8, prefix_cache=False, admission="reserve", **changes))
    running = bench.submit(submission([1] * 12, max_tokens=9))
    bench.step()
    return bench, running, bench.submit(submission([2] * 12, max_tokens=13))


def test_a_request_that_fits_passes_one_that_does_not() -> None:
    bench, running, misfit = _bench_with_a_misfit()
    small = bench.submit(submission([3], max_tokens=1))

    assert [row.key for row in bench.step().rows] == [running, small]
    assert bench.scheduler.counters.overtakes == 1
    assert bench.admissions() == [running, misfit]


def test_nobody_passes_where_overtaking_is_off() -> None:
    bench, running, misfit = _bench_with_a_misfit(max_overtakes=0)
    small = bench.submit(submission([3], max_tokens=1))

    assert bench.admissions() == [running, misfit, small]


def test_a_request_is_overtaken_only_so_often() -> None:
    bench, running, misfit = _bench_with_a_misfit(max_overtakes=3)
    small = [bench.submit(submission([n], max_tokens=3)) for n in range(3, 9)]

    assert bench.admissions() == [running, *small[:3], misfit, *small[3:]]
    assert bench.scheduler.counters.overtakes == 3


def test_a_stream_of_small_requests_does_not_starve_a_large_one() -> None:
    bench, _, misfit = _bench_with_a_misfit(max_overtakes=5, max_num_seqs=8)
    for number in range(200):
        bench.submit(submission([number % 40], max_tokens=12))
        bench.step()
        if bench.outputs[misfit]:
            break

    assert bench.outputs[misfit]
    assert number < 40


def test_a_level_of_priority_is_worth_so_many_seconds_of_waiting() -> None:
    bench = Bench(config(max_num_seqs=1, priority_age_s=10.0))
    low = bench.submit(submission([1], max_tokens=1, priority=0))
    bench.now_s = 9.0
    early = bench.submit(submission([2], max_tokens=1, priority=1))
    bench.now_s = 11.0
    late = bench.submit(submission([3], max_tokens=1, priority=1))

    assert bench.admissions() == [early, low, late]


def test_low_priority_is_served_at_last_under_a_stream_of_high() -> None:
    bench = Bench(config(max_num_seqs=1, priority_age_s=5.0))
    low = bench.submit(submission([1], max_tokens=1, priority=-1))
    for _ in range(100):
        bench.submit(submission([2], max_tokens=1, priority=1))
        bench.step()
        bench.now_s += 1.0
        if bench.outputs[low]:
            break

    assert 9.0 < bench.now_s < 13.0


def test_longest_prefix_goes_first_and_the_rest_as_they_came() -> None:
    bench = Bench(config(policy="longest_prefix", max_num_seqs=1))
    bench.submit(submission(range(12), max_tokens=1))
    bench.finish()
    cold, colder = (bench.submit(submission([n] * 12, max_tokens=1)) for n in (30, 31))
    some = bench.submit(submission([*range(4), *range(20, 28)], max_tokens=1))
    most = bench.submit(submission([*range(8), *range(20, 24)], max_tokens=1))

    assert bench.admissions() == [most, some, cold, colder]


def test_longest_prefix_does_not_starve_the_cold() -> None:
    bench = Bench(config(policy="longest_prefix", max_num_seqs=1, max_overtakes=6))
    bench.submit(submission(range(12), max_tokens=1))
    bench.finish()
    cold = bench.submit(submission([30] * 12, max_tokens=1))
    for number in range(100):
        bench.submit(submission([*range(12), number % 20], max_tokens=1))
        bench.step()
        if bench.outputs[cold]:
            break

    assert bench.scheduler.counters.overtakes == 6


def test_tenants_share_alike_however_many_requests_each_sends() -> None:
    bench = Bench(config(policy="fair_share", max_num_seqs=1))
    crowd = [bench.submit(submission([1, 2, 3], max_tokens=2, salt="crowd")) for _ in range(20)]
    single = [bench.submit(submission([4, 5, 6], max_tokens=2, salt="single")) for _ in range(3)]

    order = bench.admissions()

    assert order[:6] == [crowd[0], single[0], crowd[1], single[1], crowd[2], single[2]]
    assert order[6:] == crowd[3:]


def test_a_tenant_that_asks_for_more_tokens_gets_fewer_turns() -> None:
    bench = Bench(config(policy="fair_share", max_num_seqs=1, prefix_cache=False))
    for _ in range(12):
        bench.submit(submission([1] * 10, max_tokens=10, salt="large"))
        bench.submit(submission([2] * 5, max_tokens=5, salt="small"))

    order = bench.admissions()

    turns = [(key - 1) % 2 for key in order]  # 0 is large
    assert sum(turns[:12]) == 8


def test_idleness_saves_nothing_up() -> None:
    bench = Bench(config(policy="fair_share", max_num_seqs=1))
    bench.submit(submission([1], max_tokens=1, salt="rare"))
    for _ in range(20):
        bench.submit(submission([2] * 4, max_tokens=4, salt="busy"))
    bench.finish()
    busy, rare = (
        {bench.submit(submission([n] * 4, max_tokens=4, salt=salt)) for _ in range(4)}
        for n, salt in ((2, "busy"), (3, "rare"))
    )
    begun = set(bench.admissions()[:4])

    assert begun & busy
    assert begun & rare


def test_a_priority_orders_within_a_tenant_and_never_across() -> None:
    bench = Bench(config(policy="fair_share", max_num_seqs=1))
    plain = [bench.submit(submission([1] * 4, max_tokens=4, salt="a")) for _ in range(2)]
    loud = [bench.submit(submission([2] * 4, max_tokens=4, salt="b", priority=p)) for p in (1, 9)]

    assert bench.admissions() == [plain[0], loud[1], plain[1], loud[0]]


def test_who_gave_way_goes_on_before_new_ones_of_other_tenants() -> None:
    bench = Bench(config(policy="fair_share", max_num_seqs=1))
    first = bench.submit(submission([1] * 4, max_tokens=8, salt="a"))
    bench.step()
    bench.submit(submission([2] * 4, max_tokens=1, salt="b"))
    assert bench.scheduler.preempt(first)
    bench.scheduler.check()

    assert [row.key for row in bench.step().rows] == [first]
    bench.finish()
    assert bench.tokens(first) == answer([1] * 4, 8)


def test_tenants_that_left_are_forgotten() -> None:
    queue = FairShare(max_idle=10)
    for key in range(1000):
        request = _request(key, salt=str(key))
        queue.add(request)
        queue.charge(request.submission.salt, 5)
        assert queue.first(3) == [request]
        queue.discard(request)
        assert len(queue) == 0

    assert len(queue._tenants) <= 21
    assert len(queue._listed) <= 21


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_a_seat_is_given_up_for_a_higher_priority(max_num_seqs: int) -> None:
    bench = Bench(config(max_num_seqs=max_num_seqs))
    low = [bench.submit(submission([n] * 4, max_tokens=12)) for n in range(max_num_seqs)]
    bench.step()
    high = bench.submit(submission([9] * 4, max_tokens=3, priority=1))

    decision = bench.step()

    assert decision.preempted == (low[-1],)
    assert high in [row.key for row in decision.rows]
    bench.finish()
    assert [bench.tokens(key) for key in low] == [answer([n] * 4, 12) for n in range(max_num_seqs)]
    assert bench.tokens(high) == answer([9] * 4, 3)


def test_pages_are_given_up_for_a_higher_priority_and_only_as_many_as_help() -> None:
    bench = Bench(config(num_pages=9, prefix_cache=False))
    low = [bench.submit(submission([n] * 4, max_tokens=8)) for n in range(3)]
    bench.step()
    high = bench.submit(submission([9] * 4, max_tokens=8, priority=1))

    decision = bench.step()

    assert decision.preempted == (low[2],)
    assert high in [row.key for row in decision.rows]


def test_nobody_gives_way_in_vain() -> None:
    bench = Bench(config(num_pages=8, prefix_cache=False))
    strong = bench.submit(submission([1] * 4, max_tokens=16, priority=2))
    weak = bench.submit(submission([2] * 4, max_tokens=8))
    bench.step()
    bench.submit(submission([3] * 4, max_tokens=16, priority=1))  # not even alone beside the strong one

    decision = bench.step()

    assert decision.preempted == ()
    assert [row.key for row in decision.rows] == [strong, weak]


def test_where_all_is_reserved_nobody_gives_way() -> None:
    bench = Bench(config(max_num_seqs=1, admission="reserve"))
    bench.submit(submission([1] * 4, max_tokens=9))
    bench.step()
    bench.submit(submission([2] * 4, max_tokens=1, priority=9))
    bench.finish()

    assert bench.scheduler.counters.preemptions == 0


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 20))
def test_by_rank_is_a_sorted_list(seed: int, count: int) -> None:
    draw = random.Random(seed)
    queue, model = ByRank(), list[Request]()
    for key in range(60):
        if model and draw.random() < 0.4:
            gone = model.pop(draw.randrange(len(model)))
            queue.discard(gone)
        else:
            request = _request(key, place_s=draw.randrange(5))
            queue.add(request)
            model.append(request)
        assert list(queue.first(count)) == sorted(model, key=rank)[:count]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 20))
def test_fair_share_always_names_the_least_served_next(seed: int, count: int) -> None:
    draw = random.Random(seed)
    queue, waiting = FairShare(), dict[str, list[Request]]()
    for key in range(80):
        salt = draw.choice("abcd")
        match draw.randrange(3):
            case 0:
                request = _request(key, salt=salt, place_s=draw.randrange(5), length=draw.randint(1, 9))
                queue.add(request)
                waiting.setdefault(salt, []).append(request)
            case 1:
                queue.charge(salt, draw.randint(1, 9))
            case _:
                for request in list(queue.first(draw.randint(0, 2))):
                    queue.discard(request)
                    waiting[request.submission.salt].remove(request)
        served = {salt: queue._tenants[salt].served for salt, those in waiting.items() if those}
        left = {salt: sorted(waiting[salt], key=rank) for salt in served}
        wanted: list[Request] = []
        while left and len(wanted) < count:
            least = min(left, key=lambda salt: (served[salt], salt))
            wanted.append(left[least].pop(0))
            served[least] += len(wanted[-1].tokens)
            if not left[least]:
                del left[least]
        assert list(queue.first(count)) == wanted
        assert len(queue) == sum(map(len, waiting.values()))
