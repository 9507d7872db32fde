"""The onion: layers composed around a core, outermost first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from orchestration.core.call import Call
from orchestration.core.events import Event
from orchestration.core.protocols import Handler, Layer


def compose(layers: Iterable[Layer], core: Handler) -> Handler:
    """Wrap `core` in the layers, the first one outermost."""
    handler = core
    for layer in reversed(tuple(layers)):
        handler = _bind(layer, handler)
    return handler


def _bind(layer: Layer, following: Handler) -> Handler:
    def handler(call: Call, /) -> AsyncGenerator[Event, None]:
        return layer(call, following)

    return handler
