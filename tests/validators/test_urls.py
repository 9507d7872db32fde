"""Links are judged by the host that a browser would go to."""

from __future__ import annotations

import pytest

from tests.validators.looks import rewritten, verdict_of

GONE = "[link removed]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://good.com/x, http://evil.com/a?b=c#d now", f"see https://good.com/x, {GONE} now"),
        ("EVIL.com, a.evil.com, notevil.com, evil.company", f"{GONE}, a.{GONE}, notevil.com, evil.company"),
        ("https://good.com/?u=https://evil.com/x", f"https://good.com/?u={GONE}"),
        ("https://evil.com.good.com/", "https://evil.com.good.com/"),
        ("https://good.com.evil.com/", GONE),
        ("https://EVIL.COM.:443/", GONE),
        ("www.evil.com/x", GONE),
        ("https://\uff45\uff56\uff49\uff4c.com", GONE),
        ("https://evil\u3002com/", GONE),
        ("https://%65vil.com", GONE),
        ("https://good.com\\@evil.com/", GONE),
        ("https://good.com@evil.com/", GONE),
        ("http:///evil.com http:\\\\evil.com", f"{GONE} {GONE}"),
        ("http://2130706433/ http://0x7f.1 http://[::1]/ http://127.1 http://017700000001", " ".join([GONE] * 5)),
        ("https://xn--80ak6aa92e.com https://\u0430pple.com", f"{GONE} {GONE}"),
        ("javascript:alert(1) data:text/html;base64,AAAA", f"{GONE}) {GONE}"),
        ("ftp://x.y/z file:///etc/passwd", f"{GONE} {GONE}"),
    ],
)
def test_a_link_that_the_rules_refuse_is_taken_out_whole(text: str, expected: str) -> None:
    assert rewritten("urls", text, deny=["evil.com"]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "JavaScript: the good parts. data: 5. std::vector // comment C:\\Users",
        "http://b\u00fccher.de/ https://\u4f8b\u3048.jp",
        "https://example.com:8443/a?b=c#d (https://example.org).",
        "mailto:a@b.org",
    ],
)
def test_what_is_no_refused_link_stays(text: str) -> None:
    assert rewritten("urls", text) == text


def test_with_an_allow_list_every_other_host_is_refused() -> None:
    text = "https://a.corp.com/y http://corp.com.evil.net www.other.org"

    assert rewritten("urls", text, allow=["corp.com"]) == f"https://a.corp.com/y {GONE} {GONE}"


def test_each_doubt_can_be_allowed() -> None:
    text = "http://1.2.3.4/ http://u@a.com/ http://xn--a.com/ http://%61.com/"
    options = dict.fromkeys(("allow_ip_hosts", "allow_userinfo", "allow_punycode", "allow_confusing"), True)

    assert rewritten("urls", text) == " ".join([GONE] * 4)
    assert rewritten("urls", text, **options) == text
    assert rewritten("urls", "ftp://a.com", schemes=["ftp"]) == "ftp://a.com"


def test_the_reason_says_what_is_wrong() -> None:
    assert verdict_of("urls", "http://[::1]/").reason == "it holds a link with an IP address for its host"
    assert verdict_of("urls", "x evil.com", deny=["evil.com"]).reason == "it holds a link with a domain that is denied"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deny": ["https://evil.com"]}, "deny: 'https://evil.com' is no domain"),
        ({"allow": ["com"]}, "allow: 'com' is no domain"),
        ({"replacement": "ftp://a.b"}, "replacement: must not hold a link"),
        ({"allow_ip": True}, "allow_ip: no such option"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rewritten("urls", "x", **options)
