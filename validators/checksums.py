"""The check digits of numbers that name people and accounts, each by its published rule."""

from __future__ import annotations

_VERHOEFF_TIMES = (
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210",
)  # fmt: skip
_VERHOEFF_TURN = (
    "0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415", "7046913258",
)  # fmt: skip
_FISCAL_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16,
         10, 22, 25, 24, 23),
        strict=True,
    )
)  # fmt: skip
_DNI_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"


def is_luhn(digits: str) -> bool:
    """Check payment cards' digit (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        total += digit if place % 2 == 0 else (digit * 2 if digit < 5 else digit * 2 - 9)
    return total % 10 == 0


def is_iban(value: str) -> bool:
    """Check an account number without blanks, upper case (ISO 13616: mod 97 of the turned text is 1)."""
    return int("".join(str(int(char, 36)) for char in value[4:] + value[:4])) % 97 == 1


def is_chinese_id(value: str) -> bool:
    """Check a resident identity number of 18 places (GB 11643, ISO 7064 MOD 11-2)."""
    total = sum(int(digit) * (2 ** (17 - place) % 11) for place, digit in enumerate(value[:17]))
    return "10X98765432"[total % 11] == value[17].upper()


def is_verhoeff(digits: str) -> bool:
    """Check a number by Verhoeff's scheme, as India's Aadhaar does."""
    check = "0"
    for place, digit in enumerate(reversed(digits)):
        check = _VERHOEFF_TIMES[int(check)][int(_VERHOEFF_TURN[place % 8][int(digit)])]
    return check == "0"


def is_brazilian_cpf(digits: str) -> bool:
    """Check a CPF of 11 digits: two digits mod 11; eleven equal digits are none."""
    if len(set(digits)) == 1:
        return False
    for length in (9, 10):
        total = sum(int(digit) * (length + 1 - place) for place, digit in enumerate(digits[:length]))
        if total * 10 % 11 % 10 != int(digits[length]):
            return False
    return True


def is_spanish_id(value: str) -> bool:
    """Check a DNI or NIE, upper case: the letter is the number mod 23."""
    number = value[:-1].replace("X", "0").replace("Y", "1").replace("Z", "2")
    return _DNI_LETTERS[int(number) % 23] == value[-1]


def is_french_nir(value: str) -> bool:
    """Check a NIR of 15 places: the last two are 97 less the rest mod 97 (2A and 2B count as 19 and 18)."""
    number = value[:13].replace("2A", "19").replace("2B", "18")
    return 97 - int(number) % 97 == int(value[13:])


def is_italian_fiscal_code(value: str) -> bool:
    """Check a codice fiscale of 16 places, upper case."""
    total = sum(
        _FISCAL_ODD[char] if place % 2 == 0 else (int(char) if char.isdigit() else ord(char) - 65)
        for place, char in enumerate(value[:15])
    )
    return chr(65 + total % 26) == value[15]
