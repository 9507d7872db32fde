"""How an answer is to be drawn: a request's fields, checked. What the engine cannot do is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from backends.local.fields import Fields, read_integer, read_number, read_truth, told
from orchestration.core.errors import InvalidRequest
from orchestration.core.request import Kind, Request

MAX_CHOICES = 16
_MAX_STOPS = 64
_MAX_STOP_CHARS = 1_024
_MAX_LOGPROBS = 20
_MAX_PRIORITY = 1_000
_MAX_TOKENS = 2**31 - 1
_INT64 = 2**63
_LEAST_TOP_P = 1e-12

# Fields with an effect on the answer that this engine cannot give yet, each with the values that ask for nothing.
_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "use_beam_search": (False,),
    "web_search_options": (),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """A checked wish. `max_tokens` None: as many as fit. `logprobs` counts alternatives; None: no logprobs.

    Of two calls the one of the lower `priority` goes first, as with vLLM; waiting makes up for levels of it.
    """

    num_choices: int
    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None
    priority: int = 0

    def seed_of(self, choice: int) -> int | None:
        """Give each choice a seed of its own, the first one the request's: the same request, the same answers."""
        if self.seed is None or choice == 0:
            return self.seed
        digest = blake2b(f"{self.seed}:{choice}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % _INT64


def read_sampling(request: Request) -> Sampling:
    """Read a chat's or a completion's fields; raises `InvalidRequest` naming the first one that is wrong."""
    fields = request.fields
    _refuse_unsupported(fields)
    num_choices = read_integer(fields, "n", low=1, high=MAX_CHOICES) or 1
    if fields.get("best_of") not in (None, num_choices):
        raise InvalidRequest("'best_of' other than 'n' is not supported by this model.", param="best_of")
    max_tokens = read_integer(fields, "max_completion_tokens", low=1, high=_MAX_TOKENS)
    return Sampling(
        num_choices=num_choices,
        max_tokens=max_tokens or read_integer(fields, "max_tokens", low=1, high=_MAX_TOKENS),
        temperature=read_number(fields, "temperature", default=1.0, low=0.0, high=2.0),
        top_p=_read_top_p(fields),
        top_k=max(0, read_integer(fields, "top_k", low=-1, high=_MAX_TOKENS) or 0),
        seed=read_integer(fields, "seed", low=-_INT64, high=_INT64 - 1),
        stops=_read_stops(fields),
        stop_ids=_read_stop_ids(fields),
        ignore_eos=read_truth(fields, "ignore_eos"),
        logprobs=_read_chat_logprobs(fields)
        if request.kind is Kind.CHAT
        else read_integer(fields, "logprobs", low=0, high=_MAX_LOGPROBS),
        priority=read_integer(fields, "priority", low=-_MAX_PRIORITY, high=_MAX_PRIORITY) or 0,
    )


def _refuse_unsupported(fields: Fields) -> None:
    for name, neutral in _WITHOUT_EFFECT.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            raise InvalidRequest(f"'{name}' of {told(value)} is not supported by this model.", param=name)


def _read_top_p(fields: Fields) -> float:
    """Read the mass to draw from; of none, as OpenAI lets it be asked for, the likeliest token is what is left."""
    return max(_LEAST_TOP_P, read_number(fields, "top_p", default=1.0, low=0.0, high=1.0))


def _read_chat_logprobs(fields: Fields) -> int | None:
    num_alternatives = read_integer(fields, "top_logprobs", low=0, high=_MAX_LOGPROBS)
    if read_truth(fields, "logprobs"):
        return num_alternatives or 0
    if num_alternatives:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
    return None


def _read_stops(fields: Fields) -> tuple[str, ...]:
    value = fields.get("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS or not all(map(_is_stop, stops)):
        raise InvalidRequest(
            f"'stop' must be a text or a list of up to {_MAX_STOPS} texts of 1 to {_MAX_STOP_CHARS} characters.",
            param="stop",
        )
    return tuple(stops)


def _is_stop(stop: Any) -> bool:
    return isinstance(stop, str) and 1 <= len(stop) <= _MAX_STOP_CHARS


def _read_stop_ids(fields: Fields) -> tuple[int, ...]:
    ids = fields.get("stop_token_ids") or []
    if (
        not isinstance(ids, list)
        or len(ids) > _MAX_STOPS
        or not all(type(index) is int and index >= 0 for index in ids)
    ):
        raise InvalidRequest(
            f"'stop_token_ids' must be a list of up to {_MAX_STOPS} token ids.", param="stop_token_ids"
        )
    return tuple(ids)
