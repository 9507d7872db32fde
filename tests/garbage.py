"""What a piece of code leaves for the garbage collector."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator

OURS = ("backends.", "cache.", "gateway.", "logging_layer.", "orchestration.", "validators.")


class Garbage:
    """Counts, case by case, the objects of ours that only the garbage collector could free."""

    def __init__(self) -> None:
        self.found: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def counted(self, case: str) -> Iterator[None]:
        """Count what a block leaves; what was there before is not looked through."""
        gc.collect()
        gc.freeze()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            yield
            gc.collect()
            kinds = (f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.garbage)
            ours = Counter(kind for kind in kinds if kind.startswith(OURS))
            if ours:
                self.found[case] = ours
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
