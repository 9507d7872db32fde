"""The table of providers, from the table that backends go by."""

from __future__ import annotations

from backends.openai_compatible.providers import PROVIDERS, Provider
from gateway.reference.tables import table
from orchestration.core import Kind


def providers_table() -> str:
    """Write each provider's usual address, what it answers, and in what it differs from OpenAI."""
    head = ["`provider`", "`base_url` by default", "answers", "fields under another name", "fields not taken"]
    return table(head, [_row(name, provider) for name, provider in PROVIDERS.items()])


def _row(name: str, provider: Provider) -> list[str]:
    answers = ", ".join(kind.value for kind in Kind if kind in provider.all_kinds)
    if Kind.RERANK in provider.kinds and Kind.RERANK in provider.paths:
        answers += f" (at `{provider.paths[Kind.RERANK]}`)"
    renamed = ", ".join(f"`{old}` as `{new}`" for old, new in provider.renames.items())
    refused = ", ".join(f"`{field}`" for field in sorted(provider.not_taken))
    return [f"`{name}`", f"`{provider.base_url}`", answers, renamed or "-", refused or "-"]
