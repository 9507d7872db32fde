"""In what servers with OpenAI's API differ from it: one table, and nothing else knows their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.openai_compatible.ranking import BY_TEXTS, COHERE, PASSAGES, RankFormat
from backends.openai_compatible.tokens import (
    LLAMA_TOKENS,
    NO_TOKENS,
    SGLANG_TOKENS,
    TGI_TOKENS,
    VLLM_TOKENS,
    TokenFormat,
)
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Kind

_TEXT = frozenset({Kind.CHAT, Kind.COMPLETION})
_NEWER = {"max_tokens": "max_completion_tokens"}
_OLDER = {"max_completion_tokens": "max_tokens"}
_NEUTRAL: Mapping[str, Any] = {"n": 1, "logit_bias": {}, "tool_choice": "auto", "min_p": 0}
"""Values that say nothing: what a server does not take may be left out where it is one of these."""


@dataclass(frozen=True, slots=True)
class Provider:
    """One server's differences.

    `base_url` is where it answers where nobody says otherwise. `not_taken` are fields of chats and completions that
    it refuses or, worse, ignores; `renames` are a chat's fields under other names. Paths stand behind the base URL,
    or, where `is_rooted`, behind its host.
    """

    base_url: str | None = None
    kinds: frozenset[Kind] = _TEXT | {Kind.EMBEDDING}
    not_taken: frozenset[str] = frozenset()
    renames: Mapping[str, str] = field(default_factory=dict)
    ranks: RankFormat = COHERE
    paths: Mapping[Kind, str] = field(default_factory=dict)
    is_rooted: bool = False
    tokens: TokenFormat = NO_TOKENS

    @property
    def all_kinds(self) -> frozenset[Kind]:
        """List all kinds of calls that it answers, questions about tokens among them."""
        return self.kinds | self.tokens.kinds

    def adapt(
        self, fields: Mapping[str, Any], kind: Kind, *, name: str, drops: bool
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """Return the fields as the server takes them, and the names of those that were left out.

        Raises `InvalidRequest` by name for what it does not take, unless `drops`.
        """
        body = dict(fields)
        if kind not in _TEXT or not (self.not_taken or self.renames):
            return body, ()
        if kind is Kind.CHAT:
            for old, new in self.renames.items():
                value = body.pop(old, None)
                if value is not None and body.get(new) is None:
                    body[new] = value
        found = [one for one in self.not_taken if body.get(one) is not None]
        said = sorted(one for one in found if body[one] != _NEUTRAL.get(one))
        if said and not drops:
            raise InvalidRequest(
                f"{name} does not take '{said[0]}': leave it out, or set drop_params for this backend.",
                param=said[0],
                code="unsupported_parameter",
            )
        for one in found:
            del body[one]
        return body, said


_EXTRAS = frozenset({"top_k", "min_p", "ignore_eos", "repetition_penalty"})
_RANKS = _TEXT | {Kind.EMBEDDING, Kind.RERANK}

ANY = Provider(kinds=_RANKS)
"""A server of which nothing is said: everything goes along as it came."""

PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", not_taken=_EXTRAS, renames=_NEWER),
    "vllm": Provider("http://127.0.0.1:8000/v1", kinds=_RANKS, tokens=VLLM_TOKENS),
    "sglang": Provider("http://127.0.0.1:30000/v1", kinds=_RANKS, tokens=SGLANG_TOKENS),
    "tgi": Provider(
        "http://127.0.0.1:8080/v1",
        kinds=_TEXT,
        not_taken=frozenset({"n", "logit_bias", "parallel_tool_calls", "min_p"}),
        renames=_OLDER,
        tokens=TGI_TOKENS,
    ),
    "llama_cpp": Provider("http://127.0.0.1:8080/v1", kinds=_RANKS, renames=_OLDER, tokens=LLAMA_TOKENS),
    "ollama": Provider(
        "http://127.0.0.1:11434/v1",
        not_taken=frozenset({"n", "logit_bias", "tool_choice", "top_k", "min_p", "ignore_eos"}),
        renames=_OLDER,
    ),
    "nim": Provider(
        "http://127.0.0.1:8000/v1", kinds=_RANKS, renames=_OLDER, ranks=PASSAGES, paths={Kind.RERANK: "ranking"}
    ),
    "tei": Provider(
        "http://127.0.0.1:8080",
        kinds=frozenset({Kind.EMBEDDING, Kind.RERANK}),
        ranks=BY_TEXTS,
        paths={Kind.EMBEDDING: "v1/embeddings"},
        is_rooted=True,
    ),
    "jina": Provider("https://api.jina.ai/v1", kinds=frozenset({Kind.EMBEDDING, Kind.RERANK})),
    "cohere": Provider("https://api.cohere.com/v2", kinds=frozenset({Kind.RERANK})),
}
