"""Let only SQL pass that reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from orchestration.core import Request
from validators.check import PASSED, Context, Cost, Options, Outcome, Stage, Subject, Verdict
from validators.options import read, read_texts, refuse_unknown
from validators.sql_words import CLAUSES, FROM_WITHIN, FUNCTIONS, READING, WRITING

_TOKEN = re.compile(
    r"""(?P<space>\s+|--(?=\s|\Z)[^\n]*|/\*(?!!).*?\*/)
    |(?P<text>'(?:[^']|'')*')
    |(?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\[\]\n]*\])
    |(?P<word>[^\W\d]\w*)
    |(?P<number>\d[\w.]*|\.\d+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_AMBIGUOUS = re.compile(
    r"\\['\"`]|\#|--(?!\s|\Z)|\$\w*\$|/\*!|/\*(?:[^*]|\*(?!/))*/\*|[\"`\[][^\"`\[\]\n]*[;'][^\"`\[\]\n]*[\"`\]]"
)
"""Quotes and comments that databases read in different ways: what one takes for a text, another one runs."""
MAX_CHARS = 20_000
_FENCE = re.compile(
    r"\A\s*```(?:sql|sqlite|postgresql|mysql)?[ \t]*\n(?P<inside>.*?)\n?```\s*\Z", re.DOTALL | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of SQL; `text` is in lower case, quoted names without their quotes."""

    kind: str
    text: str


class Sql:
    """Refuse an answer that is anything but SQL which reads, in at most `max_statements` statements.

    With `tables`, what follows FROM and JOIN must be one of them (or a name that a WITH gives). A word list and a
    tokenizer know no grammar: a statement that no database would take may pass, a view or a function of one's own that
    writes is not seen. Quotes that dialects read in different ways are refused. It stands beside a database user
    without rights to write, not for one.
    """

    name = "sql"
    version = "1"
    subject = Subject.SHAPE
    cost = Cost.INLINE
    stages = frozenset({Stage.OUTPUT})
    rewrites: frozenset[Stage] = frozenset()
    longest_match = None

    def __init__(self, *, max_statements: int = 1, tables: Collection[str] | None = None) -> None:
        self._max_statements = max_statements
        self._tables = None if tables is None else frozenset(table.lower() for table in tables)

    def applies(self, request: Request) -> bool:
        """Apply to every request."""
        return True

    async def check(self, text: str, context: Context) -> Verdict:
        """Refuse what may write, saying which word or function does."""
        problem = self._problem(text)
        return PASSED if problem is None else Verdict(Outcome.BLOCK, reason=problem)

    def _problem(self, text: str) -> str | None:
        if len(text) > MAX_CHARS:
            return f"it has {len(text)} characters; at most {MAX_CHARS} are read"
        fence = _FENCE.match(text)
        code = fence.group("inside") if fence else text
        if _AMBIGUOUS.search(code) or code.rfind("/*") > code.rfind("*/"):
            return "it holds quotes or comments that databases read in different ways"
        tokens = list(tokens_of(code))
        statements = list(_statements(tokens))
        if not statements:
            return "it holds no SQL"
        if len(statements) > self._max_statements:
            return f"it holds {len(statements)} statements; at most {self._max_statements} are allowed"
        return next((problem for one in statements if (problem := self._objection(one)) is not None), None)

    def _objection(self, statement: list[Token]) -> str | None:
        first = next((token for token in statement if token.text != "("), statement[0])
        if first.kind != "word" or first.text not in READING:
            return "a statement does not begin as one that reads"
        for token, following in zip(statement, [*statement[1:], Token("sign", "")], strict=True):
            is_called = following.text == "("
            if token.kind == "word" and token.text in WRITING and not (token.text == "replace" and is_called):
                return f"a statement may write: it holds {token.text.upper()}"
            if token.kind in ("word", "name") and is_called and token.text in FUNCTIONS:
                return f"a statement calls {token.text}"
        return self._table_problem(statement)

    def _table_problem(self, statement: list[Token]) -> str | None:
        if self._tables is None:
            return None
        given = _names_given(statement)
        return next(
            ("a statement reads a table that is not allowed" for table in _tables_read(statement)
             if table not in self._tables and table not in given),
            None,
        )  # fmt: skip


def create_sql(options: Options) -> Sql:
    """Build the check from `max_statements` and `tables`; raises `ValueError` naming the option."""
    refuse_unknown(options, ("max_statements", "tables"))
    max_statements = read(options, "max_statements", int, default=1)
    if max_statements < 1:
        raise ValueError("max_statements: must be at least 1")
    tables = read_texts(options, "tables") if options.get("tables") is not None else None
    return Sql(max_statements=max_statements, tables=tables)


def tokens_of(text: str) -> Iterator[Token]:
    """Cut SQL into tokens, without blanks and comments."""
    for match in _TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind != "space":
            found = match.group()
            yield Token(kind, found[1:-1].lower() if kind == "name" else found.lower())


def _statements(tokens: list[Token]) -> Iterator[list[Token]]:
    statement: list[Token] = []
    for token in [*tokens, Token("sign", ";")]:
        if token.text != ";" or token.kind != "sign":
            statement.append(token)
        elif statement:
            yield statement
            statement = []


def _names_given(statement: list[Token]) -> set[str]:
    """List the names before `AS (`: those that a WITH gives."""
    ahead = zip(statement, statement[1:], statement[2:], strict=False)
    return {name.text for name, word, sign in ahead if word.text == "as" and sign.text == "("}


def _tables_read(statement: list[Token]) -> Iterator[str]:
    """Give the names behind FROM, JOIN and the commas of a FROM, with their schema; subqueries begin with a bracket."""
    within = _within_calls(statement)
    index = 0
    while index < len(statement):
        if (
            index not in within
            and statement[index].kind == "word"
            and statement[index].text in ("from", "join", "table")
        ):
            index += 1
            while True:
                name, index = _name_at(statement, index)
                if name is not None:
                    yield name
                index = _behind_alias(statement, index)
                if index >= len(statement) or statement[index].text != ",":
                    break
                index += 1
        else:
            index += 1


def _within_calls(statement: list[Token]) -> set[int]:
    """List the places inside the brackets of functions that take a FROM."""
    found: set[int] = set()
    opened: list[bool] = []
    for index, token in enumerate(statement):
        if token.text == "(":
            opened.append(index > 0 and statement[index - 1].text in FROM_WITHIN)
        elif token.text == ")" and opened:
            opened.pop()
        elif opened and opened[-1]:
            found.add(index)
    return found


def _name_at(statement: list[Token], index: int) -> tuple[str | None, int]:
    parts: list[str] = []
    while (
        index < len(statement)
        and statement[index].kind in ("word", "name")
        and statement[index].text not in ("lateral", "only")
    ):
        parts.append(statement[index].text)
        index += 1
        if index >= len(statement) or statement[index].text != ".":
            break
        index += 1
    return (".".join(parts) or None), index


def _behind_alias(statement: list[Token], index: int) -> int:
    if index < len(statement) and statement[index].text == "as":
        index += 1
    if index < len(statement) and statement[index].kind in ("word", "name") and statement[index].text not in CLAUSES:
        index += 1
    return index
