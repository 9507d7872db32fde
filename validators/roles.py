"""Whose words a text of a request is: the role of its message."""

from __future__ import annotations

import re

from validators.check import Context

ROLES = ("system", "user", "assistant", "tool")
_MESSAGE = re.compile(r"messages\[(\d+)\]")
_SAME = {"developer": "system", "function": "tool"}


def role_of(context: Context) -> str:
    """Name the role, one of `ROLES`: what stands in no message is the user's, tools' descriptions the system's."""
    match = _MESSAGE.match(context.where)
    if match is None or context.request is None:
        return "system" if context.where.startswith(("tools", "functions", "instructions")) else "user"
    index = int(match.group(1))
    messages = context.request.messages
    role = str(messages[index].get("role", "user")) if index < len(messages) else "user"
    return plain_role(role)


def plain_role(role: str) -> str:
    """Name a message's role as one of `ROLES`, where it is one of those under another name."""
    return _SAME.get(role, role)
