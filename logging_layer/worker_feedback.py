"""Words about calls, handed to whichever worker of this machine answers: it alone can reach the caches."""

from __future__ import annotations

from pathlib import Path

from logging_layer.labels import LabelSource
from logging_layer.sink import SinkDown
from orchestration.core.rpc import RpcClient, RpcError, RpcRefused

_UNKNOWN = "call_not_found"


class WorkerFeedback:
    """Call `feedback` on the control sockets (`w*.sock`) of a run's folder, one after the other until one takes it."""

    def __init__(self, run: Path, *, timeout_s: float = 10.0) -> None:
        self._run = run
        self._timeout_s = timeout_s

    async def take(self, call: str, *, is_correct: bool, note: str, source: LabelSource) -> bool:
        """Keep the word; False where the call is not known. Raises `SinkDown` where no worker takes it."""
        params = {"call": call, "is_correct": is_correct, "note": note, "source": source.value}
        problem = f"no worker listens in {self._run}"
        for path in sorted(self._run.glob("w*.sock")):
            client = RpcClient(path)
            try:
                await client.call("feedback", params, timeout_s=self._timeout_s)
                return True
            except RpcRefused as exc:
                if exc.code == _UNKNOWN:
                    return False
                problem = str(exc)
            except RpcError as exc:
                problem = str(exc)
            finally:
                await client.aclose()
        raise SinkDown(f"no worker took the feedback: {problem}")
