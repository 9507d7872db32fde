"""Answers of megabytes are checked in bounded memory, and nobody else waits for them."""

from __future__ import annotations

import asyncio
import resource
from contextlib import aclosing

from orchestration.core import compose
from orchestration.core.errors import Blocked
from tests.validators.scripts import Scripted, answer, make_call, output, run_to_error, said
from validators.output_checks import OutputChecks

WORDS = "the weather is good and the report came in on time bob@example.com "
MEGABYTE = 1024 * 1024
ROWS = (
    {"check": "pii", "on_fail": "rewrite", "types": ["email", "phone"]},
    {"check": "urls", "on_fail": "rewrite", "deny": ["evil.com"]},
)


async def collected(layer: OutputChecks, core: Scripted) -> str:
    pieces: list[str] = []
    async with aclosing(compose([layer], core)(make_call())) as events:
        async for event in events:
            pieces.append(said([event]))
    return "".join(pieces)


async def test_ten_megabytes_in_one_event_leave_the_loop_free() -> None:
    text = WORDS * (10 * MEGABYTE // len(WORDS))
    checking = asyncio.create_task(collected(output(*ROWS), Scripted(answer(text))))
    num_turns = 0

    while not checking.done():
        await asyncio.sleep(0.001)
        num_turns += 1

    assert "bob" not in checking.result()
    assert checking.result().count("[EMAIL]") == text.count("bob")
    assert num_turns > 20  # it took seconds, and the loop went on all the while


async def test_a_long_stream_is_held_in_little_memory() -> None:
    num_events = 600
    piece = WORDS * 8
    core = Scripted(answer(*[piece] * num_events))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    longest, num_out = 0, 0

    async with aclosing(compose([output(*ROWS)], core)(make_call())) as events:
        async for event in events:
            num_out += len(said([event]))
            longest = max(longest, len(said([event])))

    assert num_out > num_events * len(piece) * 0.85
    assert longest <= len(piece)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 * 1024


async def test_what_must_be_held_whole_is_refused_beyond_the_bound() -> None:
    core = Scripted(answer(*["x" * MEGABYTE] * 10))

    seen, error = await run_to_error(output({"check": "json", "on_fail": "block"}), core)

    assert seen == []
    assert isinstance(error, Blocked)
    assert error.code == "answer_too_long_to_check"
    assert core.num_closed == 1
