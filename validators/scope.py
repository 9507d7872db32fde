"""For which calls a check stands: by model, by key, by team, by kind of call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from orchestration.core import Call, Kind
from validators.options import read_texts, read_words, refuse_unknown


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the key's name and team, where the tenant is a key of the table."""

    name: str
    team: str | None = None


CallerOf = Callable[[str], Caller | None]
"""Find the caller behind a tenant."""


def nobody(_tenant: str) -> Caller | None:
    """Know no caller."""
    return None


@dataclass(frozen=True, slots=True)
class Scope:
    """Which calls are meant: those that match in every list that is not empty. Names may hold `*` and `?`.

    A model is the one asked for; a key is known by its name or its id, a call without one as `default`.
    """

    models: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Tell whether every call is meant."""
        return not (self.models or self.keys or self.teams or self.kinds)

    @property
    def needs_caller(self) -> bool:
        """Tell whether it matters who calls."""
        return bool(self.keys or self.teams)

    def holds(self, call: Call, caller_of: CallerOf) -> bool:
        """Tell whether a call is meant."""
        if self.is_everything:
            return True
        if self.models and not _matches(self.models, str(call.request.fields.get("model", ""))):
            return False
        if self.kinds and call.kind not in self.kinds:
            return False
        if not self.needs_caller:
            return True
        caller = caller_of(call.tenant)
        names = (call.tenant,) if caller is None else (call.tenant, caller.name)
        if self.keys and not any(_matches(self.keys, name) for name in names):
            return False
        return not self.teams or (caller is not None and caller.team is not None and _matches(self.teams, caller.team))


EVERYTHING = Scope()


def read_scope(only_for: Mapping[str, Any] | None) -> Scope:
    """Read `only_for`; raises `ValueError` naming what is wrong."""
    if only_for is None:
        return EVERYTHING
    refuse_unknown(only_for, ("models", "keys", "teams", "kinds"))
    models, keys, teams = (read_texts(only_for, name, default=()) for name in ("models", "keys", "teams"))
    return Scope(models=models, keys=keys, teams=teams, kinds=read_words(only_for, "kinds", list(Kind), default=()))


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
