"""What of a conversation a last question depends on: in strict mode all of it, in relaxed mode not always."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

CONTEXT_VERSION = 1
"""Counts up whenever relaxed mode may take other conversations for the same, or other questions to stand alone."""

_INSTRUCTING = ("system", "developer")
_MIN_OWN_WORDS = 3
_WORD = re.compile(r"[^\W_]+(?:'[a-z]+)?")
_NAME = re.compile(r"(?<=[^\W\d_A-Z] )[A-Z][a-z]\w+")
_FULL_STOPS = " \t\n.!?,;:…"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ASKS = _words(
    "what what's which who who's whose when when's where where's why how is are was were do does did can could will "
    "would should has have may must"
)
_LEANS = _words(
    "it its it's that that's this these those they they're their them he he's she she's him her his hers we we're us "
    "our ours i i'm i've i'd i'll me my mine myself one ones there then same other others another else again too also "
    "instead either neither both such former latter previous next earlier above below so and or but yes no ok okay "
    "yeah sure please thanks anyway still already more less rather just else's you're you'd first second third last "
    "option here now today tomorrow yesterday tonight"
)
"""Words whose meaning earlier turns, the speaker or the day may give."""
_CALENDAR = _words(
    "monday tuesday wednesday thursday friday saturday sunday mondays tuesdays wednesdays thursdays fridays saturdays "
    "sundays january february march april may june july august september october november december"
)
_SMALL = _words("a an the of to for in on at by with from as is are be any")


class MultiTurn(StrEnum):
    """STRICT: a conversation only ever meets itself. RELAXED: user turns that differ in case, spacing and stops alone
    are the same, and a last question that stands alone is also looked for among questions asked without a history.
    """

    STRICT = "strict"
    RELAXED = "relaxed"


def stands_alone(text: str) -> bool:
    """Tell whether a question says all that it is about: it asks, in English, about something that it names, without a
    word that leans on earlier turns, on who speaks or on when.

    Every question of which that is not plain is taken to depend on its conversation.
    """
    words = _WORD.findall(text.casefold())
    if not words or words[0] not in _ASKS or not text.rstrip().endswith("?"):
        return False
    if any(word in _LEANS for word in words) or not text.isascii():
        return False
    names = [name for name in _NAME.findall(text) if name.casefold() not in _CALENDAR]
    own = [word for word in words[1:] if word not in _SMALL and word not in _ASKS]
    return bool(names) and len(own) >= _MIN_OWN_WORDS


def without_history(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
    """Return the instructions and the last message; None where nothing would be left out."""
    *earlier, last = messages
    kept = [message for message in earlier if message.get("role") in _INSTRUCTING]
    return None if len(kept) == len(earlier) else [*kept, last]


def normalised(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages, the user's plain texts without case, spacing and stops at their end; others as they are."""
    return [
        {**message, "content": _plain(message["content"])}
        if message.get("role") == "user" and isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(_FULL_STOPS)
