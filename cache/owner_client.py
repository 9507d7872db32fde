"""The owner, as the other processes see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.bounded_store import Breaker
from cache.semantic import Found, IndexFault
from orchestration.core import Candidate
from orchestration.core.rpc import RpcClient, RpcError, RpcRefused, RpcTimeout, RpcUnavailable

_ADD_TIMEOUT_S = 30.0
_ASIDE_TIMEOUT_S = 2.0
_REMOVE_TIMEOUT_S = 10.0
_RECONNECT_S = 0.002
_MAX_UNANSWERED = 64  # a burst that outruns the encoder leaves its last calls unanswered; that is no dead owner


@dataclass(frozen=True, slots=True)
class Embedded:
    """Unit vectors (n, dim) float32, one per text, how many tokens each text had, and the model's revision."""

    vectors: NDArray[np.float32]
    num_tokens: tuple[int, ...]
    embedder: str


class OwnerClient:
    """Ask the owner behind the socket at `path`; connects at the first call and again after a break.

    Look-ups stop for a moment after 64 went unanswered in a row, so that a stopped owner costs few calls their
    deadline. Every method raises `IndexFault`: `down`, `slow`, `busy`, `too_long`, `unreadable` or `bad_params`.
    """

    def __init__(self, path: Path, *, breaker: Breaker | None = None) -> None:
        # Look-ups and long encodings have a connection each: 3 MB of vectors do not stand before an answer.
        self._lookups = RpcClient(path, max_in_flight=512)
        self._work = RpcClient(path, max_in_flight=512)
        self._breaker = breaker or Breaker(max_failures=_MAX_UNANSWERED, max_pause_s=2.0)

    async def search(self, partition: str, text: str, *, top_k: int, timeout_s: float) -> Found:
        """Return the entries nearest to `text` in the partition."""
        if not self._breaker.may_ask():
            raise IndexFault("down", "the owner has not answered several times in a row and is left alone for a moment")
        params = {"partition": partition, "text": text, "top_k": top_k}
        try:
            result, _ = await _call(self._lookups, "search", params, timeout_s=timeout_s)
        except (RpcTimeout, RpcUnavailable) as exc:
            self._breaker.fail()
            raise _fault(exc) from exc
        except RpcRefused as exc:
            self._breaker.succeed()
            raise _fault(exc) from exc
        self._breaker.succeed()
        candidates = tuple(Candidate(entry, similarity) for entry, similarity in result["neighbours"])
        return Found(candidates, embedder=result["embedder"], generation=result["generation"])

    async def add(self, partition: str, text: str, entry: str, *, ttl_s: float) -> None:
        """Have `entry` found by texts near `text` for `ttl_s` seconds."""
        params = {"partition": partition, "text": text, "entry": entry, "ttl_s": ttl_s}
        await self._call("add", params, timeout_s=_ADD_TIMEOUT_S)

    async def remove_rows(self, rows: Sequence[tuple[str, str]]) -> int:
        """Take (partition, entry) rows out, at all nodes; returns how many were in the owner's memory."""
        result, _ = await self._call("remove_rows", {"rows": [list(row) for row in rows]}, timeout_s=_REMOVE_TIMEOUT_S)
        return int(result["num_removed"])

    async def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedded:
        """Encode 1 to 2,048 texts in the patient lane."""
        result, payload = await self._call("encode", {"texts": list(texts)}, timeout_s=timeout_s)
        vectors = np.frombuffer(payload, "<f4").reshape(len(texts), result["dim"]).astype(np.float32)
        return Embedded(vectors, num_tokens=tuple(result["num_tokens"]), embedder=result["embedder"])

    async def encode(self, texts: Sequence[str], *, timeout_s: float) -> NDArray[np.float32]:
        """Return one unit vector per text, (n, dim) float32."""
        return (await self.embed(texts, timeout_s=timeout_s)).vectors

    async def stats(self) -> Mapping[str, float]:
        """Return the owner's numbers by name."""
        result, _ = await self._call("stats", None, timeout_s=_ASIDE_TIMEOUT_S)
        return {name: float(value) for name, value in result.items()}

    async def histograms(self) -> Mapping[str, tuple[list[float], list[int], float]]:
        """Return the owner's histograms by name: bounds, cumulative counts (one more than bounds), sum of values."""
        result, _ = await self._call("histograms", None, timeout_s=_ASIDE_TIMEOUT_S)
        return {name: (bounds, counts, total) for name, (bounds, counts, total) in result.items()}

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None where the owner answers."""
        try:
            await self._call("ping", None, timeout_s=_ASIDE_TIMEOUT_S)
        except IndexFault as fault:
            return f"the cache owner does not answer: {fault}"
        return None

    async def aclose(self) -> None:
        """Close the connections; calls in flight end with `down`."""
        await self._lookups.aclose()
        await self._work.aclose()

    async def _call(self, method: str, params: Any, *, timeout_s: float) -> tuple[Any, bytes]:
        try:
            return await _call(self._work, method, params, timeout_s=timeout_s)
        except RpcError as exc:
            raise _fault(exc) from exc


async def _call(client: RpcClient, method: str, params: Any, *, timeout_s: float) -> tuple[Any, bytes]:
    """Call, once more where the connection broke: it may be that of an owner before this one.

    Every method of the owner may be done twice.
    """
    begun = time.monotonic()
    try:
        return await client.call(method, params, timeout_s=timeout_s)
    except RpcUnavailable:
        await asyncio.sleep(_RECONNECT_S)  # the break may have been met in writing, before the reader heard of it
        left_s = timeout_s - (time.monotonic() - begun)
        if left_s <= 0:
            raise
        return await client.call(method, params, timeout_s=left_s)


def _fault(exc: RpcError) -> IndexFault:
    match exc:
        case RpcTimeout():
            return IndexFault("slow", str(exc))
        case RpcRefused():
            return IndexFault(exc.code, str(exc))
        case _:
            return IndexFault("down", str(exc))
