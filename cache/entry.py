"""A cached answer: the dialect-neutral events of one call, and the bytes that a store keeps of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

import msgpack

from orchestration.core import Call, Delta, Event, Finish, Part, Start, Usage

CODEC_VERSION = 1
MAX_UNPACKED_BYTES = 64 * 1024 * 1024

_MAGIC = b"LE"
_HEADER_BYTES = len(_MAGIC) + 2
_PLAIN, _ZLIB = 0, 1
# Below this zlib saves less time on the socket than it costs here (level 1: about 15 us a KiB).
_COMPRESS_FROM_BYTES = 4096
_JOINABLE = frozenset({Part.TEXT, Part.REASONING, Part.REFUSAL})


class UnreadableEntry(ValueError):
    """The stored bytes are no entry of this version: to a cache that is a miss."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One complete answer. `model` and `backend` are the real ones, `created_at` is Unix time in seconds.

    `ttl_s` is its whole life time, counted from `created_at`; a hit never lengthens it. The events hold no `raw`.
    `question` is the text that a semantic entry answers, None where it was not kept.
    """

    id: str
    call_id: str
    model: str
    backend: str
    created_at: float
    ttl_s: float
    events: tuple[Event, ...]
    question: str | None = None

    def age_s(self, now: float) -> float:
        """Tell how old the answer is at `now` (Unix time); never negative, whatever two machines' clocks say."""
        return max(0.0, now - self.created_at)


def make_entry(
    call: Call, events: Sequence[Event], *, id: str, created_at: float, ttl_s: float, question: str | None = None
) -> Entry:
    """Make the entry of a call that has just been answered by `events`, condensed."""
    start = next((event for event in events if isinstance(event, Start)), None)
    return Entry(
        id=id,
        call_id=call.id,
        model=start.model if start else call.notes.model or call.request.model,
        backend=start.backend if start else call.notes.backend or "",
        created_at=created_at,
        ttl_s=ttl_s,
        events=condense(events),
        question=question,
    )


def condense(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return what the events say, without wire frames, each choice's neighbouring pieces of text joined.

    Pieces with logprobs stay apart, so that each keeps its own; pieces that carry nothing are dropped.
    """
    condensed: list[Event] = []
    texts: dict[int, list[str]] = {}  # by position in `condensed`: joining strings pairwise would be quadratic
    latest: dict[int, int] = {}  # by choice: where its latest Delta stands
    for event in events:
        if not isinstance(event, Delta):
            condensed.append(event.with_raw(None, None) if isinstance(event, Finish) else event)
            continue
        if not event.text and event.data is None and event.logprobs is None:
            continue
        position = latest.get(event.choice)
        if position is not None and _may_join(condensed[position], event):
            texts.setdefault(position, []).append(event.text)
            continue
        latest[event.choice] = len(condensed)
        condensed.append(event.with_raw(None, None))
    for position, more in texts.items():
        first = condensed[position]
        assert isinstance(first, Delta)
        condensed[position] = replace(first, text=first.text + "".join(more))
    return tuple(condensed)


def dump(entry: Entry) -> bytes:
    """Pack an entry, compressed where it is large; raises `ValueError` where an event holds what JSON cannot."""
    fields = [entry.id, entry.call_id, entry.model, entry.backend, float(entry.created_at), float(entry.ttl_s)]
    try:
        # A model's text may hold half a surrogate pair, which strict UTF-8 has no bytes for.
        events = [_pack(event) for event in entry.events]
        body: bytes = msgpack.packb([*fields, events, entry.question], unicode_errors="surrogatepass")
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"the answer of call {entry.call_id} cannot be packed: {exc}") from exc
    packing = _PLAIN
    if len(body) >= _COMPRESS_FROM_BYTES:
        packing, body = _ZLIB, zlib.compress(body, 1)
    return _MAGIC + bytes([CODEC_VERSION, packing]) + body


def load(packed: bytes) -> Entry:
    """Unpack an entry; raises `UnreadableEntry` for another version, damage, or more than `MAX_UNPACKED_BYTES`."""
    if packed[:_HEADER_BYTES] not in (_MAGIC + bytes([CODEC_VERSION, packing]) for packing in (_PLAIN, _ZLIB)):
        raise UnreadableEntry(f"no entry of version {CODEC_VERSION}: it begins with {packed[:_HEADER_BYTES]!r}")
    body = packed[_HEADER_BYTES:]
    try:
        if packed[_HEADER_BYTES - 1] == _ZLIB:
            body = _decompress(body)
        return _unpack_entry(msgpack.unpackb(body, unicode_errors="surrogatepass"))
    except (ValueError, TypeError, IndexError, zlib.error, msgpack.UnpackException) as exc:
        raise UnreadableEntry(f"a damaged entry of {len(packed)} bytes: {exc}") from exc


def _may_join(before: Event, event: Delta) -> bool:
    return (
        isinstance(before, Delta)
        and before.part is event.part
        and event.part in _JOINABLE
        and before.logprobs is None
        and event.logprobs is None
    )


def _pack(event: Event) -> list[Any]:
    match event:
        case Start():
            return ["s", event.model, event.backend]
        case Delta():
            return ["d", event.choice, event.part.value, event.text, event.data, event.logprobs]
        case Finish():
            usage = event.usage
            counts = usage and [
                usage.prompt_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens,
                usage.cache_write_tokens,
            ]
            return ["f", list(event.reasons.items()), counts, list(event.stops.items())]
        case _:
            assert_never(event)


def _unpack_entry(packed: list[Any]) -> Entry:
    match packed:
        case [str(id), str(call_id), str(model), str(backend), float(created_at), float(ttl_s), list(events), *more]:
            if len(more) > 1:  # an older version kept no question, a newer one may keep more
                raise ValueError("more fields than this version knows")
            question = more[0] if more else None
            told = tuple(_unpack(event) for event in events)
            return Entry(id, call_id, model, backend, created_at, ttl_s, told, question)
        case _:
            raise ValueError("fields of an unknown shape")


def _unpack(packed: list[Any]) -> Event:
    match packed:
        case ["s", str(model), str(backend)]:
            return Start(model, backend)
        case ["d", int(choice), str(part), str(text), data, logprobs]:
            return Delta(choice, Part(part), text, data, logprobs)
        case ["f", list(reasons), counts, *stops] if len(stops) <= 1:  # an older version wrote no stops
            return Finish(
                {int(choice): str(reason) for choice, reason in reasons},
                counts and Usage(*counts),
                stops={int(choice): str(stop) for choice, stop in (stops[0] if stops else ())},
            )
        case _:
            raise ValueError("an event of an unknown shape")


def _decompress(body: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    plain = decompressor.decompress(body, MAX_UNPACKED_BYTES)
    if not decompressor.eof:
        raise ValueError(f"cut short, or more than {MAX_UNPACKED_BYTES} bytes")
    return plain
