from __future__ import annotations

from dataclasses import dataclass

from gateway.limits.rules import Limits, Rules, Scope


@dataclass
class _Key:
    limits: Limits
    team: str | None = None


class _Keys:
    def __init__(self, **keys: _Key) -> None:
        self.keys = keys

    def by_id(self, key_id: str) -> _Key | None:
        return self.keys.get(key_id)


def test_a_keys_scopes_follow_the_table_and_are_the_same_objects_meanwhile() -> None:
    keys = _Keys(a=_Key(Limits(rpm=1), team="lab"))
    rules = Rules(keys, default=Limits(tpm=9), teams={"lab": Limits(parallel=5)})

    first, again = rules.scopes_of("a"), rules.scopes_of("a")
    keys.keys["a"] = _Key(Limits(rpm=2))
    changed = rules.scopes_of("a")
    del keys.keys["a"]
    gone = rules.scopes_of("a")

    assert first == (Scope("key:a", Limits(rpm=1, tpm=9)), Scope("team:lab", Limits(parallel=5)))
    assert again is first
    assert changed == (Scope("key:a", Limits(rpm=2, tpm=9)),)
    assert gone == (Scope("key:a", Limits(tpm=9)),)
