"""Personal data is found by shape and check digit, and look-alikes are let through."""

from __future__ import annotations

import pytest

from tests.validators.looks import rewritten, verdict_of
from validators import checksums
from validators.pii_shapes import SHAPES, TYPES

FOUND = [
    ("mail bob.o'neil@sub.example.co.uk now", "mail [EMAIL] now"),
    ("<j\u00fcrgen@m\u00fcller.de>", "<[EMAIL]>"),
    ("us\u200ber@exam\u200bple.com", "[EMAIL]"),
    ("\uff41\uff42@\uff45x.com", "[EMAIL]"),
    ("DE89 3704 0044 0532 0130 00.", "[IBAN]."),
    ("GB82WEST12345698765432", "[IBAN]"),
    ("card 4111 1111 1111 1111 12/27", "card [CREDIT_CARD] 12/27"),
    ("378282246310005 or 5555-5555-5555-4444", "[CREDIT_CARD] or [CREDIT_CARD]"),
    ("\u8eab\u4efd\u8bc111010519491231002X\u3002", "\u8eab\u4efd\u8bc1[CN_ID]\u3002"),
    ("NIR 2 55 08 14 168 025 38", "NIR [FR_NIR]"),
    ("cf MRTMTT91D08F205J", "cf [IT_FISCAL_CODE]"),
    ("4991 1866 5246", "[IN_AADHAAR]"),
    ("529.982.247-25", "[BR_CPF]"),
    ("12345678Z and X1234567L", "[ES_ID] and [ES_ID]"),
    ("AB 12 34 56 C", "[UK_NINO]"),
    ("078-05-1120", "[US_SSN]"),
    ("call +1 415 555 2671!", "call [PHONE]!"),
    ("(415) 555-2671 or 415-555-2671", "[PHONE] or [PHONE]"),
    ("\u7535\u8bdd13812345678\u53f7", "\u7535\u8bdd[PHONE]\u53f7"),
    ("+86 138 1234 5678", "[PHONE]"),
    ("London 020 7946 0958", "London [PHONE]"),
    ("from 8.8.8.8, 2a00:1450:4001:81b::200e", "from [IP_ADDRESS], [IP_ADDRESS]"),
    ("postgres://u:pw@db/x", "postgres://[CREDENTIALS]@db/x"),
]

LOOK_ALIKES = [
    "2024-01-01 12:00:00 1700000000000 ISBN 978-3-16-148410-0 3.14159265358979",
    "order 1234567890123456, invoice 2023-000123",
    "550e8400-e29b-41d4-a716-446655440000",
    "127.0.0.1 0.0.0.0 192.168.0.1 10.1.2.3 ::1 2001:db8::1 v1.2.3.4 std::vector 10:20:30",
    "000-12-3456 666-12-3456 900-12-3456",
    "import os.path; self.name; a@b; @decorator x@",
    "DE88370400440532013000",
    "4111 1111 1111 1112",
    "11010519491231002Y",
    "QQ123456C",
    "100 200 300 400 are prices; 1 + 1 = 2; 50 % of 1,000,000",
    "0000000000000000 1111111111111111",
    "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
]


@pytest.mark.parametrize(("text", "expected"), FOUND)
def test_personal_data_is_replaced_by_its_sort(text: str, expected: str) -> None:
    assert rewritten("pii", text) == expected


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert rewritten("pii", text) == text


def test_only_the_types_chosen_are_looked_for() -> None:
    text = "a@example.com, 415-555-2671"

    assert rewritten("pii", text, types=["phone"]) == "a@example.com, [PHONE]"
    with pytest.raises(ValueError, match=r"types: 'fax' is not known; known: url_credentials, email"):
        rewritten("pii", text, types=["fax"])


def test_the_reason_names_the_sorts_and_never_the_text() -> None:
    reason = verdict_of("pii", "bob@example.com 078-05-1120").reason

    assert reason == "it holds personal data (email, us_ssn)"


def test_every_type_is_found_by_some_sample() -> None:
    reasons = " ".join(str(verdict_of("pii", text).reason) for text, _ in FOUND)

    assert [sort for sort in TYPES if sort not in reasons] == []


def test_no_finding_is_longer_than_its_bound() -> None:
    for shape in SHAPES:
        for text, _ in FOUND:
            for span in verdict_of("pii", text, types=[shape.name]).spans:
                assert span.end - span.start <= shape.longest


@pytest.mark.parametrize(
    ("check", "right"),
    [
        (checksums.is_luhn, "4111111111111111"),
        (checksums.is_verhoeff, "499118665246"),
        (checksums.is_brazilian_cpf, "52998224725"),
        (checksums.is_chinese_id, "110105194912310029"),
        (checksums.is_french_nir, "255081416802538"),
    ],
)
def test_a_checksum_refuses_every_wrong_digit(check: object, right: str) -> None:
    assert callable(check)
    right = right if check(right) else right[:-1] + next(d for d in "0123456789X" if check(right[:-1] + d))

    for place in range(len(right) - 1):
        for digit in "0123456789":
            changed = right[:place] + digit + right[place + 1 :]
            assert check(changed) == (changed == right)
