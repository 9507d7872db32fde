"""Checks around input and output, own and borrowed, and the hold-back that makes them safe on streams."""

from validators.check import Check, Context, Outcome, Span, Stage, Verdict
from validators.guardrails_client import GuardrailsClient
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.policy import Rule
from validators.registry import CheckSpec, build_checks, guardrails_specs, parse_specs, policy_hash

__all__ = [
    "Check",
    "CheckSpec",
    "Context",
    "GuardrailsClient",
    "InputChecks",
    "Outcome",
    "OutputChecks",
    "Rule",
    "Span",
    "Stage",
    "Verdict",
    "build_checks",
    "guardrails_specs",
    "parse_specs",
    "policy_hash",
]
