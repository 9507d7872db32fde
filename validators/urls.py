"""Judge the addresses in a text by their scheme and host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Span, Stage, Subject, Verdict
from validators.hosts import Doubt, host_of
from validators.options import read, read_texts, refuse_unknown
from validators.patterns import compiled, quote
from validators.recognise import Accept, Recogniser, Recognisers, always

SCHEMES = ("http", "https")
_WITHOUT_SLASHES = "javascript|vbscript|livescript"
BARE = "bare"
DENIED = "a domain that is denied"
_LONGEST_AUTHORITY = 260
_TAIL = r"[^\s<>\"'`\pZ,;)\]}\x{3002}\x{ff0c}]{1,128}"


@dataclass(frozen=True, slots=True)
class UrlRules:
    """What addresses may be: with `allow`, only hosts of those domains and below; never one of `deny`.

    The four doubts (an IP address for a host, punycode or letters of several scripts, a user's name before the host,
    a host that parsers read in different ways) are each allowed or not.
    """

    schemes: frozenset[str] = frozenset(SCHEMES)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    doubts: frozenset[Doubt] = frozenset()

    def objection(self, url: str) -> str | None:
        """Say what is wrong with an address up to its host, in a phrase, or None."""
        scheme, _, rest = url.partition(":")
        if url.lower().startswith("www."):
            scheme, rest = "https", f"//{url}"
        if scheme.lower() not in self.schemes:
            return "a scheme that is not allowed"
        authority = rest.lstrip("/\\")
        if not authority:
            return None
        host, doubts = host_of(authority)
        if rest[: len(rest) - len(authority)] != "//":
            doubts |= {Doubt.CONFUSING}
        for doubt in Doubt:
            if doubt in doubts and doubt not in self.doubts:
                return doubt.value
        if _is_below(host, self.deny):
            return DENIED
        if self.allow and not _is_below(host, self.allow):
            return "a domain that is not allowed"
        return None


class Urls:
    """Find addresses that the rules refuse; a rewrite puts `replacement` in the place of each.

    Looked at are `scheme://host`, `www.` names, script schemes, `data:` documents,
    and the bare names of denied domains. Where a link leads after a redirect is not known here.
    """

    name = "urls"
    version = "1"
    subject = Subject.CONTENT
    cost = Cost.INLINE
    stages = frozenset(Stage)
    rewrites = frozenset(Stage)

    def __init__(self, rules: UrlRules, *, replacement: str = "[link removed]") -> None:
        self._rules = rules
        self._replacement = replacement
        self._recognisers = Recognisers(_recognisers(rules, self._is_refused))
        self._tail = compiled(_TAIL)
        self.longest_match: int | None = max(128, self._recognisers.longest)

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Ask for every refused address to be replaced, however long it is; the reason says what is wrong."""
        spans: list[Span] = []
        reasons: set[str] = set()
        at = self._tails(text, context.start, spans) if context.follows_match else context.start
        for found in self._recognisers.find(text, start=at):
            if found.start < at:
                continue  # within the rest of an address
            spans.append(Span(found.start, found.end, self._replacement))
            url = text[found.start : found.end]
            reasons.add((self._rules.objection(url) if found.name != BARE else None) or DENIED)
            at = self._tails(text, found.end, spans)
        if not spans:
            return PASSED
        return Verdict(Outcome.REWRITE, tuple(spans), f"it holds a link with {', '.join(sorted(reasons)) or 'more'}")

    def _tails(self, text: str, at: int, spans: list[Span]) -> int:
        """Take the rest of an address, piece by piece, and say where it ends."""
        while (rest := self._tail.match(text[at : at + 128])) is not None:
            spans.append(Span(at, at + len(rest.group()), ""))
            at += len(rest.group())
        return at

    def _is_refused(self, text: str, start: int, end: int) -> bool:
        url = text[start:end]
        is_inside = _in_scheme(text[start - 1 : start])
        if is_inside and not url.lower().startswith(("http://", "https://", "ftp://")):
            return False
        return self._rules.objection(url) is not None


def create_urls(options: Options) -> Urls:
    """Build the check from `schemes`, `allow`, `deny`, `replacement` and the four switches; raises `ValueError`."""
    refuse_unknown(options, ("schemes", "allow", "deny", "replacement", *_SWITCHES))
    domains = {name: _domains(options, name) for name in ("allow", "deny")}
    schemes = read_texts(options, "schemes", default=SCHEMES)
    rules = UrlRules(
        schemes=frozenset(scheme.lower().removesuffix(":") for scheme in schemes),
        allow=domains["allow"],
        deny=domains["deny"],
        doubts=frozenset(doubt for name, doubt in _SWITCHES.items() if read(options, name, bool, default=False)),
    )
    replacement = read(options, "replacement", str, default="[link removed]")
    if next(Recognisers(_recognisers(rules, always)).find(replacement), None) is not None:
        raise ValueError("replacement: must not hold a link")
    return Urls(rules, replacement=replacement)


_SWITCHES: Mapping[str, Doubt] = {
    "allow_ip_hosts": Doubt.IP_LITERAL,
    "allow_punycode": Doubt.PUNYCODE,
    "allow_userinfo": Doubt.USERINFO,
    "allow_confusing": Doubt.CONFUSING,
}


def _domains(options: Options, name: str) -> tuple[str, ...]:
    domains = read_texts(options, name, default=())
    for domain in domains:
        if "/" in domain or ":" in domain or "." not in domain:
            raise ValueError(f"{name}: '{domain}' is no domain; write it as in example.com, without a scheme")
    return tuple(domain.lower().removeprefix("*.").strip(".") for domain in domains)


def _recognisers(rules: UrlRules, is_refused: Accept) -> list[Recogniser]:
    authority = rf"[^\s/?#\"'<>`\pZ]{{0,{_LONGEST_AUTHORITY}}}"
    schemed = rf"(?i)https?:[/\\]{{2,8}}{authority}|[a-z][a-z0-9+.-]{{0,20}}://{authority}"
    bare_script = rf"(?i)(?:{_WITHOUT_SLASHES}):\S|data:[a-z]{{1,16}}/[a-z0-9.+-]{{1,32}}(?:;[a-z0-9=-]{{1,24}})?[;,]"
    found = [
        Recogniser("url", schemed, 24 + _LONGEST_AUTHORITY, is_refused, ":"),
        Recogniser("script", bare_script, 84, is_refused, ":"),
        Recogniser("www", rf"(?i)www\.{authority}", 4 + _LONGEST_AUTHORITY, is_refused, "wW"),
    ]
    if rules.deny:
        names = "|".join(quote(domain) for domain in rules.deny)
        longest = max(map(len, rules.deny))
        ended = r"\.?(?:[^\pL\pN._-]|\z)"  # a longer domain may go on behind a dot
        found.append(Recogniser(BARE, rf"(?i)({names})(?:{ended})", longest + 1, _is_bare, "."))
    return found


def _is_bare(text: str, start: int, _end: int) -> bool:
    """Take a denied name where no longer word ends in it; what is below it is denied too."""
    before = text[start - 1 : start]
    return not (before.isalnum() or before == "-")


def _in_scheme(char: str) -> bool:
    return char != "" and ((char.isascii() and char.isalnum()) or char in "+.-")


def _is_below(host: str, domains: Sequence[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)
