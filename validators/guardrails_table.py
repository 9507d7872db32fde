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
    required: frozenset[str] = frozenset()

    def code_version(self) -> str:
        """Name the versions of the adapter, guardrails-ai and the validator; without importing any of them."""
        return "/".join(["1", *(_version(name) for name in ("guardrails-ai", self.package))])


_PLAIN: tuple[tuple[str, Subject, str, Mapping[str, type]], ...] = (
    ("contains-string", Subject.SHAPE, "it does not hold a text that it must hold", {"substring": str}),
    ("ends-with", Subject.SHAPE, "it does not end as it must", {"end": str}),
    ("has-url", Subject.SHAPE, "it holds no address of the web", {}),
    ("mentions-drugs", Subject.CONTENT, "it mentions a drug", {}),
    ("one-line", Subject.SHAPE, "it has more than one line", {}),
    ("reading-time", Subject.SHAPE, "it takes too long to read", {"reading_time": float}),
    ("valid-choices", Subject.SHAPE, "it is none of the answers allowed", {"choices": list}),
)
"""Validators that block and whose every option is needed. Their fixes are not taken over."""

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
    ),
    **{
        f"guardrails/{name}": Borrowed(
            package=f"guardrails-ai-{name}",
            module=f"guardrails_ai.{name.replace('-', '_')}",
            class_name="".join(word.capitalize() for word in name.split("-")),
            subject=subject,
            reason=reason,
            options=options,
            required=frozenset(options),
        )
        for name, subject, reason, options in _PLAIN
    },
}


_FETCHES = "it fetches models or data from the net when it is imported or first used"
_OURS = "ours, {}, does it in linear time"

REFUSED: Mapping[str, str] = {
    "guardrails/ban-list": "its fix takes out half of a spaced word; " + _OURS.format("banned_words or competitors"),
    "guardrails/bias-check": "it needs TensorFlow and an older transformers",
    "guardrails/competitor-check": _FETCHES + "; " + _OURS.format("competitors"),
    "guardrails/detect-jailbreak": "it needs an older huggingface_hub; " + _OURS.format("prompt_injection"),
    "guardrails/detect-pii": _FETCHES + "; " + _OURS.format("pii"),
    "guardrails/detect-prompt-injection": "it cannot be installed beside openai 2; " + _OURS.format("prompt_injection"),
    "guardrails/exclude-sql-predicates": "it needs sqlglot, and its fix is an empty text; " + _OURS.format("sql"),
    "guardrails/gibberish-text": _FETCHES,
    "guardrails/guardrails-pii": "it needs an older transformers; " + _OURS.format("pii"),
    "guardrails/memory-poisoning-guard": "it passes 'ignore all previous instructions'; "
    + _OURS.format("prompt_injection"),
    "guardrails/nsfw-text": _FETCHES,
    "guardrails/provenance-embeddings": _FETCHES + "; " + _OURS.format("grounding"),
    "guardrails/provenance-llm": "it asks a model of its own over the net, and needs an older litellm",
    "guardrails/quotes-price": "it needs a currency with each call, which no setting can give; "
    + _OURS.format("regex"),
    "guardrails/redundant-sentences": _FETCHES,
    "guardrails/regex-match": "it backtracks, and its fix makes a value up; " + _OURS.format("regex"),
    "guardrails/similar-to-document": _FETCHES,
    "guardrails/similar-to-previous-values": _FETCHES,
    "guardrails/toxic-language": _FETCHES,
    "guardrails/unusual-prompt": "it asks a model of its own over the net, and needs an older litellm",
    "guardrails/valid-html": "it accepts whatever its parser can mend, an open <p> too",
    "guardrails/valid-sql": "it parses too little to tell; " + _OURS.format("sql"),
}
"""Validators of guardrails-ai that were tried and do not serve here, and why: without a network, or as they say."""


def borrowed(name: str) -> Borrowed:
    """Return a known validator; raises `ValueError` with the reason where it does not serve, else listing the known."""
    if name in REFUSED:
        raise ValueError(f"check: '{name}' does not serve here: {REFUSED[name]}")
    if name not in KNOWN:
        raise ValueError(f"check: '{name}' is not known; known guardrails-ai checks: {', '.join(sorted(KNOWN))}")
    known = KNOWN[name]
    if _version(known.package) == "absent":
        raise ValueError(f"check: '{name}' is not on this machine; install {known.package}")
    return known


def checked_options(name: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return a validator's constructor arguments; raises `ValueError` naming the option that is wrong."""
    validator = borrowed(name)
    known = validator.options
    refuse_unknown(options, known)
    for option in sorted(validator.required):
        if options.get(option) is None:
            raise ValueError(f"{option}: {name} needs it")
    return {option: value for option, kind in known.items() if (value := read(options, option, kind)) is not None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
