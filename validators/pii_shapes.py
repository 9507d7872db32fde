"""What personal data looks like. Numbers are taken for such only where their check digits or their writing say so."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from validators import checksums
from validators.recognise import Accept, Recogniser

_DIGITS = "0123456789"
_SEPARATORS = re.compile(r"[^0-9A-Za-z]")


def _bare(check: Callable[[str], bool]) -> Accept:
    """Apply a checksum to the letters and digits of what was found, where no letter or digit goes on beside it."""

    def accept(text: str, start: int, end: int) -> bool:
        return _stands_alone(text, start, end) and check(_SEPARATORS.sub("", text[start:end]).upper())

    return accept


def _stands_alone(text: str, start: int, end: int) -> bool:
    """Tell whether no ASCII letter, digit or underscore stands right beside: numbers within words are none."""
    before, after = text[start - 1 : start], text[end : end + 1]
    return not (_is_word(before) or _is_word(after))


def _is_word(char: str) -> bool:
    return char != "" and (char.isdigit() or char == "_" or (char.isascii() and char.isalpha()))


def _is_card(digits: str) -> bool:
    return checksums.is_luhn(digits) and _CARD_START.match(digits) is not None and len(set(digits)) > 1


_CARD_START = re.compile(
    r"4(?:.{12}|.{15}|.{18})\Z|(?:5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720).{1,}\Z|3[47].{13}\Z|(?:6011|65|64[4-9]).{1,}\Z"
    r"|35.{14}\Z|3(?:0[0-5]|[689]).{11,}\Z|62.{14,17}\Z"
)
"""Which issuers' ranges there are, and how long their numbers may be; a random number passes Luhn one time in ten."""


def _is_address(text: str, start: int, end: int) -> bool:
    """Take addresses that the whole net knows: loopback, private and example networks are no one's in particular."""
    if not _stands_alone(text, start, end) or text[start - 1 : start] in (".", ":", "v", "V"):
        return False
    if text[end : end + 1] in (":", "-") and ":" in text[start:end]:
        return False
    try:
        return ipaddress.ip_address(text[start:end]).is_global
    except ValueError:
        return False


def _is_us_number(digits: str) -> bool:
    """Refuse what the agency never gave out: 000, 666 and 900 to 999, and zeros in the other places."""
    return digits[:3] not in ("000", "666") and digits[0] != "9" and digits[3:5] != "00" and digits[5:] != "0000"


def _is_phone(text: str, start: int, end: int) -> bool:
    before, after = text[start - 1 : start], text[end : end + 1]
    if text[start] == "+" and not _is_word(before):
        return True  # what goes on behind fifteen digits is no part of a number
    if not _stands_alone(text, start, end) or before in ("-", ".", "/", "+", "#", "="):
        return False
    num_digits = sum(char.isdigit() for char in text[start:end])
    return 7 <= num_digits <= 15 and after not in ("/", "%")


_LETTERS = r"A-Za-z\x{c0}-\x{24f}\x{370}-\x{52f}"
"""Latin, Greek and Cyrillic letters: without blanks between words an address would swallow its neighbours."""
URL_CREDENTIALS = "url_credentials"

SHAPES: tuple[Recogniser, ...] = (
    Recogniser(URL_CREDENTIALS, r"[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s/@:?#]{0,64}:[^\s/@?#]{1,100}@", 184, needs="@"),
    Recogniser(
        "email",
        rf"[{_LETTERS}0-9._%+'-]{{1,64}}@(?:[{_LETTERS}0-9-]{{1,40}}\.){{1,2}}[{_LETTERS}]{{2,24}}(?:\.[{_LETTERS}]{{2,3}})?",
        180,
        needs="@",
    ),
    Recogniser(
        "iban", r"(?i)[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?", 43, _bare(checksums.is_iban), _DIGITS
    ),
    Recogniser(
        "credit_card",
        r"[0-9]{4}[ -][0-9]{4}[ -][0-9]{4}[ -][0-9]{4}|3[47][0-9]{2}[ -][0-9]{6}[ -][0-9]{5}"
        r"|3[0689][0-9]{2}[ -][0-9]{6}[ -][0-9]{4}|[0-9]{13,19}",
        19,
        _bare(_is_card),
        _DIGITS,
    ),
    Recogniser(
        "cn_id", r"[1-9][0-9]{5}(?:19|20)[0-9]{2}[01][0-9][0-3][0-9]{4}[0-9Xx]", 18, _bare(checksums.is_chinese_id),
        _DIGITS,
    ),
    Recogniser(
        "fr_nir", r"[12] ?[0-9]{2} ?[01][0-9] ?[0-9][0-9AB] ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}", 21,
        _bare(checksums.is_french_nir), _DIGITS,
    ),
    Recogniser(
        "it_fiscal_code", r"(?i)[A-Z]{6}[0-9]{2}[A-EHLMPRST][0-9]{2}[A-Z][0-9]{3}[A-Z]", 16,
        _bare(checksums.is_italian_fiscal_code), _DIGITS,
    ),
    Recogniser("in_aadhaar", r"[2-9][0-9]{3}[ -][0-9]{4}[ -][0-9]{4}", 14, _bare(checksums.is_verhoeff), _DIGITS),
    Recogniser(
        "br_cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}", 14, _bare(checksums.is_brazilian_cpf), _DIGITS
    ),
    Recogniser(
        "es_id", r"(?i)(?:[0-9]{8}|[XYZ]-?[0-9]{7})-?[A-HJ-NP-TV-Z]", 11, _bare(checksums.is_spanish_id), _DIGITS
    ),
    Recogniser(
        "uk_nino", r"(?i)[A-CEGHJ-PRSTW-Z][A-CEGHJ-NPRSTW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]", 13,
        _stands_alone, _DIGITS,
    ),
    Recogniser("us_ssn", r"[0-9]{3}-[0-9]{2}-[0-9]{4}", 11, _bare(_is_us_number), _DIGITS),
    Recogniser(
        "phone",
        r"\+[0-9]{1,3}(?:[ .()-]{0,2}[0-9]){6,12}|\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[ .-][0-9]{4}"
        r"|(?:1[ .-])?[2-9][0-9]{2}[ .-][2-9][0-9]{2}[ .-][0-9]{4}|1[3-9][0-9]{9}"
        r"|1[3-9][0-9][ -][0-9]{4}[ -][0-9]{4}|0[1-9][0-9]{0,3}(?:[ /-][0-9]{2,4}){2,4}",
        40,
        _is_phone,
        _DIGITS,
    ),
    Recogniser(
        "ip_address",
        r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}|(?i)(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}",
        39,
        _is_address,
        _DIGITS,
    ),
)  # fmt: skip
"""In the order in which they win over one another at one place."""

TYPES = tuple(shape.name for shape in SHAPES)
