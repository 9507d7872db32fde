"""The caller's trace through a whole worker: the backend is told it, and the record holds it."""

from __future__ import annotations

from pathlib import Path

from orchestration.core.trace_context import root_span_id_of
from tests.backends.remote.fake_upstream import FakeUpstream
from tests.gateway.serving import CHAT, chat
from tests.gateway.whole import good, remote_settings, whole

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_the_backend_is_told_the_callers_trace_and_the_record_holds_it(
    upstream: FakeUpstream, valkey_url: str, tmp_path: Path
) -> None:
    upstream.script = good()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    async with whole(tmp_path, remote_settings(upstream, valkey_url)) as here:
        reply = await here.ask(CHAT, chat(model="tiny", stream=True), headers=headers)
        call = reply.headers["x-lamina-call"].upper()
        record = await here.wired.parts.calls.get(call)
        plain = await here.ask(CHAT, chat(model="tiny", stream=True, seed=2))
        odd = await here.ask(CHAT, chat(model="tiny", stream=True, seed=3), headers={"traceparent": "00-1-2-3"})

    assert [reply.status, plain.status, odd.status] == [200, 200, 200]
    assert upstream.asked[0].headers["traceparent"] == f"00-{TRACE}-{root_span_id_of(call).hex()}-01"
    assert upstream.asked[0].headers["tracestate"] == "vendor=1"
    assert not [asked for asked in upstream.asked[1:] if "traceparent" in asked.headers]
    assert record is not None
    assert record["trace"] == {"trace_id": TRACE, "parent_id": PARENT, "flags": "01", "state": "vendor=1"}
