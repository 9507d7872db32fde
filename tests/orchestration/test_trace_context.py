"""The caller's trace: what is one is passed on with our span as the parent, what is none is ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.trace_context import TraceContext, parse_trace, root_span_id_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value", [f"00-{TRACE}-{PARENT}-01", f"01-{TRACE}-{PARENT}-01-more", f"cc-{TRACE}-{PARENT}-01"]
)
def test_a_trace_is_read(value: str) -> None:
    assert parse_trace(value, "vendor=1") == TraceContext(TRACE, PARENT, "01", "vendor=1")


@pytest.mark.parametrize(
    "value",
    [
        "",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01\r\nx: y",
    ],
)
def test_what_is_no_trace_is_ignored(value: str) -> None:
    assert parse_trace(value) is None


@pytest.mark.parametrize("state", ["x" * 513, "a=\r\nb", "ä=1"])
def test_a_state_that_no_header_may_hold_is_left_out(state: str) -> None:
    assert parse_trace(f"00-{TRACE}-{PARENT}-01", state) == TraceContext(TRACE, PARENT, "01")


def test_a_backend_is_told_our_span_as_its_parent() -> None:
    headers = TraceContext(TRACE, PARENT, "01", "vendor=1").headers("call-1")

    assert headers == {
        "traceparent": f"00-{TRACE}-{root_span_id_of('call-1').hex()}-01",
        "tracestate": "vendor=1",
    }
    assert parse_trace(headers["traceparent"]) is not None


@given(st.text(), st.text())
def test_any_header_is_read_or_ignored(value: str, state: str) -> None:
    found = parse_trace(value, state)

    assert found is None or found.trace_id in value
