"""The caller's trace, as W3C's Trace Context tells it: what came, and what a backend is told."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

MAX_STATE_CHARS = 512
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace that our call is a part of: ids in lower-case hexadecimal digits, `state` as it came."""

    trace_id: str
    parent_id: str
    flags: str
    state: str = ""

    def headers(self, call_id: str) -> dict[str, str]:
        """Write the headers by which a backend's spans become children of the call's."""
        parent = f"00-{self.trace_id}-{root_span_id_of(call_id).hex()}-{self.flags}"
        return {"traceparent": parent, **({"tracestate": self.state} if self.state else {})}


def parse_trace(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Read the headers; None for what is none, which W3C says is to be ignored.

    Of a later version than 00 the known part is read. A state that is too long or that no header may hold is left out.
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    version, trace_id, parent_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    is_kept = len(tracestate) <= MAX_STATE_CHARS and tracestate.isascii() and tracestate.isprintable()
    return TraceContext(trace_id, parent_id, flags, tracestate if is_kept else "")


def root_span_id_of(call_id: str) -> bytes:
    """Derive the id of a call's outermost span, 8 bytes, which everybody who knows the call knows."""
    return hashlib.blake2b(f"{call_id}/root".encode(), digest_size=8).digest()
