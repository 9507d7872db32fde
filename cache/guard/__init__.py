"""The difference guard: what two questions' words say against one answer for both."""

from cache.guard.guard import GUARD_VERSION, Guard, load_guard
from cache.guard.veto import Veto

__all__ = ["GUARD_VERSION", "Guard", "Veto", "load_guard"]
