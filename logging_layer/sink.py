"""Where shipped records go: what a sink promises, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from logging_layer.codec import decode
from orchestration.core.value import value


@value
class Shipped:
    """A record on its way: the JSON as it stands in the spool, and how many calls it stands for.

    A weight of 1 is a call that is always shown, one of 0 a call that others stand for already.
    """

    data: bytes
    weight: float = 1.0
    picked: Any = None
    """What a sink that picks took out of it while it was read; None where it was not, or could not."""

    @property
    def record(self) -> Mapping[str, Any]:
        """Read what it says, anew each time: a batch of read records takes ten times its bytes, and as long again."""
        record: Mapping[str, Any] = decode(self.data)
        return record


class SinkDown(Exception):
    """The sink cannot be reached or is out of order: the same records are sent again later."""


class SinkRefused(Exception):
    """The sink takes these records from nobody: they are sent one by one, and those refused are put aside."""


@runtime_checkable
class Picks(Protocol):
    """Take out of a record what `send` needs while it is read anyway: it is not read again, and no more of it waits."""

    def pick(self, data: bytes, record: Mapping[str, Any]) -> Any:
        """Return it; what this raises for a record that is out of shape, `send` refuses it for."""
        ...


class Sink(Protocol):
    """Take records, each of them any number of times, and keep it once."""

    @property
    def name(self) -> str:
        """Name the sink, and the file that holds how far it has come."""
        ...

    @property
    def max_records(self) -> int:
        """Bound a batch."""
        ...

    async def send(self, records: Sequence[Shipped]) -> None:
        """Keep the records for good; raises `SinkDown` or `SinkRefused`, and then may have kept some of them."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
