"""The endpoints that make an answer: a body becomes a call, the handler's events become the reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from gateway.access import Gatekeeper
from gateway.body import read_body
from gateway.body_cache import take_cache
from gateway.dialects import Answer, Dialect, Reply, StreamEncoder
from gateway.dialects.sse import HEADERS
from gateway.error_body import fault_error, status_of
from gateway.exchange import Exchange
from gateway.headers import controls_of
from gateway.http_errors import ClientLeft, Stopping
from gateway.metrics import Metrics
from orchestration.core import Call, Finish, Handler
from orchestration.core.deadlines import Deadlines
from orchestration.core.errors import BackendError, LaminaError, ServerError

SHORTEST_BEAT_S = 0.1
ATTEND_AFTER_S = 0.01
"""How long a call may take before anybody looks whether its client is still there."""

logger = logging.getLogger(__name__)


class Generation:
    """Answer one dialect's calls, whole or streamed.

    A client that leaves, in whatever phase, closes the handler's events at once. A stream's head is held back
    until content, so that an error is still a status code; after `stream_commit_s` without content it is sent,
    with a sign of life every so often.
    """

    def __init__(
        self,
        dialect: Dialect,
        handler: Handler,
        *,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
        max_body_bytes: int,
        stream_commit_s: float,
    ) -> None:
        self._dialect = dialect
        self._handler = handler
        self._gatekeeper = gatekeeper
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._stream_commit_s = stream_commit_s
        self._deadlines = Deadlines()

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one call; raises the error that it ends with before anything was sent, or `ClientLeft`."""
        tenant = self._gatekeeper.tenant_of(exchange.headers)
        controls = controls_of(exchange.headers)
        body = await read_body(exchange, max_bytes=self._max_body_bytes, deadlines=self._deadlines)
        request = self._dialect.parse(body, exchange.headers)
        request, controls = take_cache(request, controls)
        exchange.model = request.model
        self._gatekeeper.check_model(tenant, request.model)
        call = exchange.call(request, tenant=tenant, controls=controls)
        reply = Reply(call_id=call.id, created=int(call.received_at), request=request)
        encoder = self._dialect.stream(reply) if request.is_streamed else None
        with self._metrics.in_flight(exchange.label):
            if encoder is None:
                work = self._answer_whole(exchange, call, reply)
                await while_connected(exchange, work, deadlines=self._deadlines)
            else:
                stream = _Stream(exchange, encoder)
                patience = _Patience(stream, self._stream_commit_s)
                work = stream.write(self._handler, call)
                await while_connected(exchange, work, patience=patience, deadlines=self._deadlines)

    async def _answer_whole(self, exchange: Exchange, call: Call, reply: Reply) -> None:
        answer = Answer()
        async with aclosing(self._handler(call)) as events:
            async for event in events:
                exchange.saw(event)
                answer.add(event)
        if not answer.is_finished:
            raise cut_off()
        exchange.cost_is_known = True
        await exchange.reply(200, self._dialect.encode(answer, reply))


class _Stream:
    """Write one call's events as they come, each as soon as the reader took the one before."""

    def __init__(self, exchange: Exchange, encoder: StreamEncoder) -> None:
        self._exchange = exchange
        self._encoder = encoder
        self.is_waiting = True

    async def keep_alive(self) -> None:
        """Tell the client that the answer is still coming."""
        await self._exchange.send_piece(self._encoder.encode_keep_alive(), headers=HEADERS)

    async def write(self, handler: Handler, call: Call) -> None:
        """Write the stream to its end; an error after the head was sent ends it with an error frame."""
        try:
            end = await self._write_events(handler, call)
        except asyncio.CancelledError:
            if self._exchange.is_started:
                with suppress(TimeoutError):  # a reader that does not read must not hold up the stop
                    async with asyncio.timeout(1.0):
                        await self._break_off(Stopping("The gateway is being stopped."))
            raise
        except Exception as exc:  # the head may be out: only an error frame can still tell the client
            if not self._exchange.is_started:
                raise
            await self._break_off(exc if isinstance(exc, LaminaError) else fault_of(exc, call.id))
        else:
            await self._exchange.send_piece(end, headers=HEADERS, is_last=True)

    async def _break_off(self, error: LaminaError) -> None:
        self.is_waiting = False
        await self._exchange.send_piece(self._encoder.encode_error(error), is_last=True)
        self._exchange.status = status_of(error)

    async def _write_events(self, handler: Handler, call: Call) -> bytes:
        """Write all but the end, which is returned: the layers have then finished their part of the call."""
        end = b""
        async with aclosing(handler(call)) as events:
            async for event in events:
                self._exchange.saw(event)
                frames = self._encoder.encode(event)
                if isinstance(event, Finish):
                    end = frames + self._encoder.encode_end()
                elif frames:
                    self.is_waiting = False
                    await self._exchange.send_piece(frames, headers=HEADERS)
        if not end:
            raise cut_off()
        self.is_waiting = False
        return end


@dataclass(frozen=True, slots=True)
class _Patience:
    """Keep the client of a stream that has nothing to show patient, every so often."""

    stream: _Stream
    beat_s: float


async def while_connected(
    exchange: Exchange,
    work: Awaitable[None],
    *,
    patience: _Patience | None = None,
    deadlines: Deadlines | None = None,
) -> None:
    """Do the work; where the client leaves first, cancel it at once and raise `ClientLeft` when it has ended.

    Whether the client is still there is looked at from `ATTEND_AFTER_S` on: what is answered sooner costs no task.
    """
    attendance = _Attendance(exchange, patience, deadlines or Deadlines())
    try:
        await work
    except asyncio.CancelledError:
        if attendance.take_back():
            raise ClientLeft from None
        raise
    except Exception as exc:
        if attendance.take_back():
            if not isinstance(exc, (ClientLeft, LaminaError)):
                logger.error("call.cleanup_failed id=%s", exchange.id, exc_info=exc)
            raise ClientLeft from exc
        raise
    finally:
        await attendance.aclose()


class _Attendance:
    """Watch the client while the current task works for it, and cancel that task when the client leaves."""

    def __init__(self, exchange: Exchange, patience: _Patience | None, deadlines: Deadlines) -> None:
        worker = asyncio.current_task()
        assert worker is not None, "work is done in a task"
        self._worker = worker
        self._exchange = exchange
        self._patience = patience
        self._has_left = False
        self._task: asyncio.Task[None] | None = None
        self._alarm = deadlines.ring(ATTEND_AFTER_S, self._begin)

    def take_back(self) -> bool:
        """Tell whether the client has left, and take the cancellation back that it caused."""
        if self._has_left:
            self._worker.uncancel()
        return self._has_left

    async def aclose(self) -> None:
        """Watch no longer; raises what went wrong with the watching itself."""
        self._alarm.cancel()
        # A cancelled task's trace leads back here: kept, it is a cycle with all that the call holds.
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            if not self._has_left:
                raise
            self._worker.uncancel()  # the client left just when everything was done
        if not task.cancelled():
            task.result()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._attend(), name="attendant")

    async def _attend(self) -> None:
        try:
            await _attend(self._exchange, self._patience)
        except ClientLeft:
            self._has_left = True
            self._worker.cancel()


def fault_of(error: Exception, call_id: str) -> ServerError:
    """Log a fault of ours with its trace, and make the error that the client sees: it says where to look."""
    logger.error("call.failed id=%s", call_id, exc_info=error)
    return fault_error(call_id)


async def _attend(exchange: Exchange, patience: _Patience | None) -> None:
    """Wait for the client to leave, and meanwhile keep it patient while a stream has nothing to show yet."""
    beat_s = 0.0 if patience is None else patience.beat_s
    while True:
        is_due = patience is not None and patience.stream.is_waiting
        try:
            async with asyncio.timeout(beat_s if is_due else None):
                while (await exchange.receive())["type"] != "http.disconnect":
                    pass
            raise ClientLeft
        except TimeoutError:
            if patience is not None and patience.stream.is_waiting:
                await patience.stream.keep_alive()
            beat_s = max(beat_s, SHORTEST_BEAT_S)


def cut_off() -> BackendError:
    """Make the error of an answer without an end."""
    return BackendError("The answer ended without saying why.")
