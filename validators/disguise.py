"""Take the disguise off a text: look-alike letters, digits for letters, letters set apart, Base64 and other codes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from urllib.parse import unquote

from validators.patterns import compiled

_LOOK_ALIKES = str.maketrans(
    # Cyrillic, then Greek, then others that are drawn like Latin letters.
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0458\u0455\u0501\u04bb\u043a\u043c\u0442\u043d\u0432"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0423\u0406\u0405"
    "\u03b1\u03b5\u03bf\u03c1\u03bd\u03b9\u03ba\u03c4\u03c5\u03c7\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f"
    "\u03a1\u03a4\u03a7\u03a5\u0396\u0131\u0261\u0251\u1d0f\u1d00\u1d07\u026a\u0280\u1d1b\u1d1c\u0274\u0261\u2018\u2019\u201c\u201d",
    "aeopcxyijsdhkmthbABEKMHOPCTXYISaeopvikTuxABEHIKMNOPTXYZigaoaeirtung''\"\"",
)
_LEET = str.maketrans("013457@$!|", "oieastasii")
_WORD = re.compile(r"\S+")
_LEET_CHAR = re.compile(r"[0134578@$!|]")
_LONGEST_LEET = 40
_APART = re.compile(r"\b\w([ ._*-])(?:\w\1){2,}\w\b")
_SIGNS = re.compile(r"[ ._*-]")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
_HEX = re.compile(r"\b(?:[0-9a-fA-F]{2}[ ]?){12,}")
_PERCENT = re.compile(r"(?:%[0-9a-fA-F]{2}|[A-Za-z0-9+._~-]){12,}")
# What must be there for the slower expressions to find anything, on the fast engine: most texts have none of it.
_MAY_BE_APART = compiled(r"\w[ ._*-]\w[ ._*-]\w[ ._*-]\w")
_MAY_BE_LEET = compiled(r"[0134578@$!|][a-z]|[a-z][0134578@$]")
_MAY_BE_CODE = compiled(r"[A-Za-z0-9+/_-]{16}|(?:[0-9a-fA-F]{2} ?){12}|%[0-9a-fA-F]{2}")

MAX_DECODED = 16
MAX_CODE_CHARS = 8_192
_PRINTABLE_SHARE = 0.9


def plain(text: str) -> str:
    """Write a text in lower case with Latin letters for their look-alikes, each blank once; CJK stays."""
    folded = text.translate(_LOOK_ALIKES).lower()
    return re.sub(r"[^\S\n]+", " ", folded)


def undisguised(text: str) -> str:
    """Undo digits for letters (1gn0re) and letters set apart (i g n o r e) in a text that `plain` wrote."""
    is_apart = _MAY_BE_APART.search(text.encode()) is not None
    joined = _APART.sub(lambda run: _SIGNS.sub("", run.group()), text) if is_apart else text
    return _WORD.sub(_without_digits, joined) if _MAY_BE_LEET.search(joined.encode()) else joined


def _without_digits(match: re.Match[str]) -> str:
    word = match.group()
    is_disguised = len(word) <= _LONGEST_LEET and _LEET_CHAR.search(word) and any(map(str.isalpha, word))
    return word.translate(_LEET) if is_disguised else word


def decoded(text: str) -> Iterator[str]:
    """Give what stands in a text in Base64, hexadecimal or percent codes, if it is readable; at most `MAX_DECODED`."""
    if _MAY_BE_CODE.search(text.encode()) is None:
        return
    num_found = 0
    for pattern, decode in ((_BASE64, _from_base64), (_HEX, _from_hex), (_PERCENT, _from_percent)):
        for match in pattern.finditer(text):
            found = decode(match.group()[:MAX_CODE_CHARS])
            if found is not None and _is_readable(found):
                yield found
                num_found += 1
            if num_found >= MAX_DECODED:
                return


def _from_base64(code: str) -> str | None:
    code = code.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(code + "=" * (-len(code) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        return None


def _from_hex(code: str) -> str | None:
    try:
        return bytes.fromhex(code).decode()
    except ValueError:
        return None


def _from_percent(code: str) -> str | None:
    return unquote(code).replace("+", " ") if code.count("%") >= 2 else None


def _is_readable(text: str) -> bool:
    num_printable = sum(char.isprintable() or char in "\n\t" for char in text)
    return len(text) >= 8 and num_printable >= _PRINTABLE_SHARE * len(text) and any(map(str.isalpha, text))
