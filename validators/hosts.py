"""Read the host of a URL as a browser would, and say where readers may disagree about it."""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from enum import StrEnum
from urllib.parse import unquote

_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


class Doubt(StrEnum):
    """What makes a host suspect, in the words of the reason."""

    CONFUSING = "a host that programs read in different ways"
    USERINFO = "a user's name before its host"
    IP_LITERAL = "an IP address for its host"
    PUNYCODE = "a host in disguised letters"


def host_of(authority: str) -> tuple[str, frozenset[Doubt]]:
    """Return the host in lower case, and every doubt about it, from what stands between `//` and the path."""
    doubts: set[Doubt] = set()
    if "\\" in authority:
        doubts.add(Doubt.CONFUSING)
        authority = authority.split("\\")[0]
    userinfo, at, host = authority.rpartition("@")
    if at:
        doubts.add(Doubt.USERINFO)
        if "@" in userinfo:
            doubts.add(Doubt.CONFUSING)
    if "%" in host:
        doubts.add(Doubt.CONFUSING)
        host = unquote(host, errors="replace")
    host = _without_port(host.lower()).replace("\u3002", ".").rstrip(".")
    if _is_address(host):
        doubts.add(Doubt.IP_LITERAL)
    if "xn--" in host or not _is_one_script(host):
        doubts.add(Doubt.PUNYCODE)
    return host, frozenset(doubts)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _is_address(host: str) -> bool:
    """Tell addresses in all writings that resolvers take: dotted, decimal, octal, hexadecimal, fewer parts, IPv6."""
    if host.startswith("["):
        try:
            ipaddress.IPv6Address(host[1:-1].partition("%")[0])
        except ValueError:
            return False
        return True
    labels = host.split(".")
    return len(labels) <= 4 and all(_NUMBER.fullmatch(label) for label in labels)


def _is_one_script(host: str) -> bool:
    """Tell whether each label is written in one script; Latin digits go with all, and so does what is only ASCII."""
    return host.isascii() or all(len(_scripts(label)) <= 1 for label in host.split("."))


def _scripts(label: str) -> set[str]:
    names = {unicodedata.name(char, "?").split()[0] for char in label if char.isalpha()}
    return {"CJK" if name in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL") else name for name in names}
