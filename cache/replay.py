"""A cached answer told again, as the stream or the whole that the client asked for."""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

from cache.entry import Entry
from orchestration.core import Call, Delta, Event, Finish, Part, Start, Usage

_PIECE_CHARS = 24
_MAX_PIECES = 64
_ZERO_WIDTH_JOINER = "\u200d"
_ZERO_WIDTH_NON_JOINER = "\u200c"


async def replay(entry: Entry, call: Call) -> AsyncGenerator[Event, None]:
    """Tell the entry's events again: in several pieces where the client asked for a stream, else as they are kept.

    The pieces' concatenation is the kept text; reasoning, tool calls, logprobs and usage come back unchanged.
    """
    yield _start_of(entry)
    for event in entry.events:
        if isinstance(event, Start):
            continue
        if call.request.is_streamed and isinstance(event, Delta):
            for piece in cut(event):
                yield piece
        else:
            yield event


def _start_of(entry: Entry) -> Start:
    """Begin with the prompt's part of the usage, which is known by now."""
    start = next((event for event in entry.events if isinstance(event, Start)), Start(entry.model, entry.backend))
    usage = next((event.usage for event in entry.events if isinstance(event, Finish)), None)
    if usage is None:
        return start
    return replace(start, usage=Usage(prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens))


def cut(delta: Delta) -> Iterator[Delta]:
    """Cut a long text into pieces of about 24 characters, at most 64 of them, none inside a visible character.

    A piece with logprobs is cut between its tokens where these spell out its text, and else stays whole; so
    does everything that is no text.
    """
    size = max(_PIECE_CHARS, len(delta.text) // _MAX_PIECES + 1)
    if delta.part in (Part.TOOL_CALL, Part.PAYLOAD) or len(delta.text) <= size:
        yield delta
    elif delta.logprobs is None:
        for text in cut_text(delta.text, size=size):
            yield replace(delta, text=text, raw=None, dialect=None)
    else:
        yield from _cut_at_tokens(delta, size=size)


def cut_text(text: str, *, size: int) -> Iterator[str]:
    """Cut a text into pieces of at least `size` characters, the last one excepted, between visible characters."""
    begin = 0
    while begin < len(text):
        end = begin + size
        while end < len(text) and not can_cut(text, end):
            end += 1
        yield text[begin:end]
        begin = end


def can_cut(text: str, position: int) -> bool:
    """Tell whether a visible character ends before `position`, so that a piece may end there.

    This knows what is met in practice (marks, joiners, emoji with skin tones, flags, conjoining Hangul, line ends),
    not all of Unicode's grapheme rules: where they differ, a piece only ends elsewhere.
    """
    before, after = text[position - 1], text[position]
    if before < "\u0300" and after < "\u0300":  # neither marks nor joiners are down here
        return not (before == "\r" and after == "\n")
    if before == _ZERO_WIDTH_JOINER or _extends(after):
        return False
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        return _count_flag_halves(text, position) % 2 == 0
    return not (_is_hangul(before) and "\u1160" <= after <= "\u11ff")


def _extends(char: str) -> bool:
    return (
        char in (_ZERO_WIDTH_JOINER, _ZERO_WIDTH_NON_JOINER)
        or unicodedata.category(char) in ("Mn", "Mc", "Me")
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags, in the flags of regions
    )


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _count_flag_halves(text: str, position: int) -> int:
    begin = position
    while begin > 0 and _is_flag_half(text[begin - 1]):
        begin -= 1
    return position - begin


def _is_hangul(char: str) -> bool:
    return "\u1100" <= char <= "\u11ff" or "\uac00" <= char <= "\ud7a3"


def _cut_at_tokens(delta: Delta, *, size: int) -> Iterator[Delta]:
    """Cut chat logprobs (a list of `{"token": ...}`) and their text together."""
    tokens = [str(item.get("token")) for item in delta.logprobs] if _is_token_list(delta.logprobs) else []
    if "".join(tokens) != delta.text:
        yield delta
        return
    begin_char = begin_token = end_char = 0
    for index, token in enumerate(tokens):
        end_char += len(token)
        is_last = index == len(tokens) - 1
        if is_last or (end_char - begin_char >= size and can_cut(delta.text, end_char)):
            text, logprobs = delta.text[begin_char:end_char], delta.logprobs[begin_token : index + 1]
            yield replace(delta, text=text, logprobs=logprobs, raw=None, dialect=None)
            begin_char, begin_token = end_char, index + 1


def _is_token_list(logprobs: object) -> bool:
    return isinstance(logprobs, list) and all(isinstance(item, dict) for item in logprobs)
