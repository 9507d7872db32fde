"""Which answers may be kept: complete and successful ones alone."""

from __future__ import annotations

from collections.abc import Sequence

from orchestration.core import CacheStatus, Call, Delta, Event, Finish, Kind

CACHEABLE_KINDS = frozenset({Kind.CHAT, Kind.COMPLETION, Kind.EMBEDDING, Kind.RERANK})
"""The kinds of call whose answers can be kept."""

_GENERATING = frozenset({Kind.CHAT, Kind.COMPLETION})
# `function_call` is the older name of `tool_calls`.
_COMPLETE = frozenset({"stop", "tool_calls", "function_call"})


def why_not_stored(call: Call, events: Sequence[Event]) -> str | None:
    """Say in a word why the answer may not be stored, or None where it may.

    An answer that a check could not look at counts as degraded (`check_unrun`); a store or an index that was down
    (`notes.degraded`) took nothing from the answer and does not.
    """
    if call.controls.cache.is_no_store:
        return "no_store"
    if call.kind not in CACHEABLE_KINDS:
        return "kind"
    notes = call.notes
    if notes.cache.status in (CacheStatus.SEMANTIC, CacheStatus.EXACT):
        return f"from_{notes.cache.status}"
    if notes.is_fallback:
        return "fallback"
    if any(check.verdict == "error" for check in notes.checks):
        return "check_unrun"
    return _why_incomplete(call, events)


def _why_incomplete(call: Call, events: Sequence[Event]) -> str | None:
    finish = events[-1] if events else None
    if not isinstance(finish, Finish):
        return "incomplete"
    deltas = [event for event in events if isinstance(event, Delta)]
    if not any(delta.text or delta.data is not None for delta in deltas):
        return "empty"
    if call.kind is Kind.EMBEDDING:
        num_vectors = sum(len(delta.data) for delta in deltas if isinstance(delta.data, list))
        return "incomplete" if num_vectors < _num_inputs(call, "input") else None
    if call.kind is Kind.RERANK:
        num_results = sum(len(delta.data) for delta in deltas if isinstance(delta.data, list))
        return "incomplete" if num_results < _num_ranked(call) else None
    if call.kind not in _GENERATING:
        return None
    num_choices = call.request.num_choices * (_num_inputs(call, "prompt") if call.kind is Kind.COMPLETION else 1)
    if not {delta.choice for delta in deltas} <= finish.reasons.keys() or len(finish.reasons) < num_choices:
        return "incomplete"
    unfit = sorted(set(finish.reasons.values()) - _COMPLETE)
    return f"finish_{unfit[0]}" if unfit else None


def _num_ranked(call: Call) -> int:
    num_documents, top_n = _num_inputs(call, "documents"), call.request.fields.get("top_n")
    return min(num_documents, top_n) if isinstance(top_n, int) else num_documents


def _num_inputs(call: Call, field: str) -> int:
    """Count the texts of a field that holds one text, one list of token ids, or a list of either."""
    value = call.request.fields.get(field)
    return len(value) if isinstance(value, list) and value and not isinstance(value[0], int) else 1
