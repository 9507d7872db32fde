from __future__ import annotations

import gc

from orchestration.core.memory import settle_memory


def test_what_was_there_at_the_start_is_not_looked_through_again() -> None:
    before = gc.get_threshold()
    try:
        settle_memory()
        assert gc.get_freeze_count() > 10_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
