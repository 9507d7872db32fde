"""Values of LiteLLM's file: taken one by one, so that what nobody took is known."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.refusals import SettingsError

_FROM_ENVIRONMENT = "os.environ/"


class Remarks:
    """What was left aside, each with its path and the reason; `unused` says of which keys that is known."""

    def __init__(self, unused: Mapping[str, str]) -> None:
        self.unused = unused
        self.made: list[str] = []

    def add(self, path: str, reason: str) -> None:
        """Remark on one key."""
        self.made.append(f"{path}: {reason}")


class Reader:
    """One mapping of the file. Every value is taken at most once; `finish` refuses what was not."""

    def __init__(self, values: Any, path: str, variables: Mapping[str, Any], remarks: Remarks) -> None:
        if not isinstance(values, dict):
            raise SettingsError(f"{path}: is a mapping, not {type(values).__name__}")
        self._left = dict(values)
        self._taken: list[str] = []
        self._variables = variables
        self._remarks = remarks
        self.path = path

    def take(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where there is none; `os.environ/NAME` becomes our `${NAME}`."""
        self._taken.append(name)
        value = self._left.pop(name, None)
        if value is None:
            return default
        if isinstance(value, str) and value.startswith(_FROM_ENVIRONMENT):
            variable = value.removeprefix(_FROM_ENVIRONMENT)
            return self._variables.get(variable, f"${{{variable}}}")
        return value

    def inner(self, name: str) -> Reader:
        """Return the reader of a mapping inside; an empty one where there is none."""
        self._taken.append(name)
        return Reader(self._left.pop(name, None) or {}, f"{self.path}.{name}", self._variables, self._remarks)

    def finish(self) -> None:
        """Remark on what is known to mean nothing here; raises `SettingsError` for the first other key left."""
        section = self.path.rpartition(".")[2]
        for name in self._left:
            reason = self._remarks.unused.get(f"{section}.{name}")
            if reason is None:
                close = difflib.get_close_matches(name, self._taken, n=1, cutoff=0.7)
                hint = f"did you mean '{close[0]}'?" if close else "take it out, or say it in Lamina's own keys"
                raise SettingsError(f"{self.path}.{name}: has no meaning here; {hint}")
            self._remarks.add(f"{self.path}.{name}", reason)


def redis_url(reader: Reader, prefix: str = "") -> str | None:
    """Build the URL of a Redis that is named by its host, or return the one that is named whole."""
    whole = reader.take(f"{prefix}url")
    host, port, password = (reader.take(f"{prefix}{name}") for name in ("host", "port", "password"))
    if whole is not None or host is None:
        return None if whole is None else str(whole)
    text = str(password or "")
    # What the environment will put in its place cannot be quoted here.
    secret = f":{text if text.startswith('${') else quote(text, safe='')}@" if text else ""
    return f"redis://{secret}{host}:{port or 6379}"
