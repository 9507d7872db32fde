"""Which guardrails-ai validators are known here, and what of them can be trusted. Imports nothing of guardrails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from validators.check import Stage, Subject
from validators.options import read, refuse_unknown


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A validator of guardrails-ai: where its class is, and the options its constructor takes.

    `rewrites` says where its own fix may be used; `reason` is what the client is told: the validators' own words
    may quote the text.
    """

    package: str
    module: str
    class_name: str
    subject: Subject
    reason: str
    rewrites: frozenset[Stage] = frozenset()
    options: Mapping[str, type] = field(default_factory=dict)

    def code_version(self) -> str:
        """Name the versions of the adapter, guardrails-ai and the validator; without importing any of them."""
        return "/".join(["1", *(_version(name) for name in ("guardrails-ai", self.package))])


KNOWN: Mapping[str, Borrowed] = {
    "guardrails/valid-length": Borrowed(
        package="guardrails-ai-valid-length",
        module="guardrails_ai.valid_length",
        class_name="ValidLength",
        subject=Subject.SHAPE,
        reason="its length is out of bounds",
        # Its fix for a text too short pads it with the last letter; only cuts are taken over.
        rewrites=frozenset({Stage.OUTPUT}),
        options={"min": int, "max": int},
    ),
    "guardrails/secrets-present": Borrowed(
        package="guardrails-ai-secrets-present",
        module="guardrails_ai.secrets_present",
        class_name="SecretsPresent",
        subject=Subject.CONTENT,
        reason="it holds what looks like a secret",
        rewrites=frozenset(Stage),
        options={},
    ),
}


def borrowed(name: str) -> Borrowed:
    """Return a known validator; raises `ValueError` listing those that are known."""
    if name not in KNOWN:
        raise ValueError(f"check: '{name}' is not known; known guardrails-ai checks: {', '.join(sorted(KNOWN))}")
    return KNOWN[name]


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return a validator's constructor arguments; raises `ValueError` naming the option that is wrong."""
    known = borrowed(name).options
    refuse_unknown(options, known)
    return {option: value for option, kind in known.items() if (value := read(options, option, kind)) is not None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
