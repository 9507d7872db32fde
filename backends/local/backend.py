"""The built-in engine as a backend: a call's text becomes token ids, its tokens become events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from backends.local.capacity import Capacity
from backends.local.choice import Choice
from backends.local.generation import EngineRefused, Generation, Step, Submission
from backends.local.model import LocalModel
from backends.local.prompts import field_of, read_prompts
from backends.local.sampling import Sampling, read_sampling
from backends.local.text import LocalText
from backends.rest import left_out
from orchestration.core.call import Call
from orchestration.core.errors import (
    BackendError,
    BackendTimeout,
    ContextTooLong,
    InvalidRequest,
    LaminaError,
    Overloaded,
)
from orchestration.core.events import Event, Finish, Start, Usage
from orchestration.core.notes import DROPPED_PARAMS, ENGINE
from orchestration.core.request import Kind

_STATS_TIMEOUT_S = 10.0
"""An engine on a busy machine answers between two steps."""


class LocalBackend:
    """Answer chats and completions from the engine.

    Every sequence of a call is aborted as soon as its stop string is complete or the generator is closed. The
    prefix cache is kept apart by tenant. The link is the model's: `aclose` leaves it to its other users.

    Without `first_token_s` a call waits for its turn as long as the engine moves: it is looked at every `look_s`, and a
    call ends with `BackendTimeout` where two looks find no step between them, or after `total_s`.
    """

    def __init__(
        self,
        model: LocalModel,
        *,
        name: str = "engine",
        first_token_s: float | None = None,
        total_s: float = 600.0,
        look_s: float = 60.0,
    ) -> None:
        self._model = model
        self._name = name
        self._first_token_s = first_token_s
        self._total_s = total_s
        self._look_s = look_s

    @property
    def name(self) -> str:
        """Name the backend."""
        return self._name

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call; `Start` comes with the first token."""
        request = call.request
        if dropped := left_out(request):
            call.notes.extra[DROPPED_PARAMS] = list(dropped)
        begun_s = asyncio.get_running_loop().time()
        sampling = read_sampling(request)
        text = await self._model.text()
        info = await self._model.link.info()
        prompts = await read_prompts(request, text=text, capacity=info.capacity)
        submissions = _plan(prompts, sampling, capacity=info.capacity, kind=request.kind, salt=call.tenant)
        choices = _prepare(len(submissions), sampling, kind=request.kind, text=text)
        generation = await self._model.link.submit(submissions)
        submitted_ms = (time.monotonic() - call.started) * 1e3
        try:
            steps = await self._take_first(generation, begun_s, kind=request.kind)
            yield Start(model=info.name, backend=self._name, usage=_prompt_usage(prompts, steps))
            while True:
                for step in steps:
                    choice = choices[step.index]
                    delta = choice.advance(step)
                    if choice.reason is not None:
                        generation.abort(step.index)  # where the engine did not end it: a stop string did
                    if delta is not None:
                        yield delta
                if all(choice.reason is not None for choice in choices):
                    break
                steps = await self._take(generation, begun_s + self._total_s, kind=request.kind)
        finally:
            generation.close()
            _note_events(call, generation, submitted_ms)
        yield _finish(choices, prompts=prompts, num_choices=sampling.num_choices)

    async def check_health(self) -> str | None:
        """Say what is wrong with the engine or the model's files, or None."""
        try:
            await self._model.text()
            await self._model.link.stats()
        except BackendError as exc:
            return exc.message
        return None

    async def aclose(self) -> None:
        """Do nothing: the link is shared, and its owner closes it."""

    async def _take_first(self, generation: Generation, begun_s: float, *, kind: Kind) -> list[Step]:
        end_s = begun_s + self._total_s
        if self._first_token_s is not None:
            return await self._take(generation, min(begun_s + self._first_token_s, end_s), kind=kind)
        look_s, num_steps = begun_s + self._look_s, -1.0
        while True:
            try:
                return await self._take(generation, min(look_s, end_s), kind=kind)
            except BackendTimeout:
                now = await self._num_steps()
                if look_s >= end_s or now == num_steps:
                    raise
                look_s, num_steps = look_s + self._look_s, now

    async def _num_steps(self) -> float:
        """Count the steps that the engine has made; -1 where it does not tell."""
        try:
            return (await self._model.link.stats(timeout_s=_STATS_TIMEOUT_S)).get("steps", -1.0)
        except BackendTimeout:
            return -1.0

    async def _take(self, generation: Generation, deadline_s: float, *, kind: Kind) -> list[Step]:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await generation.take()
        except TimeoutError as exc:
            raise BackendTimeout("the engine took longer than its time limit for this call") from exc
        except EngineRefused as exc:
            raise _translate(exc, kind=kind) from exc


def _plan(
    prompts: Sequence[Sequence[int]], sampling: Sampling, *, capacity: Capacity, kind: Kind, salt: str
) -> list[Submission]:
    """Make one sequence per prompt and choice, in the order of OpenAI's choice indices."""
    return [
        Submission(
            prompt=prompt,
            max_tokens=_max_tokens(len(prompt), sampling, capacity=capacity, kind=kind),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed_of(choice),
            stop_ids=sampling.stop_ids,
            ignore_eos=sampling.ignore_eos,
            logprobs=sampling.logprobs,
            salt=salt,
            priority=-sampling.priority,  # the engine's goes the other way: the higher first
        )
        for prompt in prompts
        for choice in range(sampling.num_choices)
    ]


def _max_tokens(prompt_tokens: int, sampling: Sampling, *, capacity: Capacity, kind: Kind) -> int:
    if sampling.max_tokens is None:
        return capacity.tokens - prompt_tokens
    wanted = prompt_tokens + sampling.max_tokens
    if wanted > capacity.tokens:
        field = field_of(kind)
        raise ContextTooLong(
            f"{capacity.words}. However, you requested {wanted} tokens "
            f"({prompt_tokens} in the {field}, {sampling.max_tokens} in the answer). Please reduce either.",
            param=field,
        )
    return sampling.max_tokens


def _prepare(count: int, sampling: Sampling, *, kind: Kind, text: LocalText) -> list[Choice]:
    return [
        Choice(index, kind=kind, pieces=text.pieces, stops=sampling.stops, num_alternatives=sampling.logprobs)
        for index in range(count)
    ]


def _prompt_usage(prompts: Sequence[Sequence[int]], steps: Sequence[Step]) -> Usage:
    """Count the prompt; what of it was in the engine's cache is known for one prompt only, by the first step."""
    cached = steps[0].cached_tokens if len(prompts) == 1 else 0
    return Usage(prompt_tokens=sum(map(len, prompts)), cached_tokens=cached)


def _finish(choices: Sequence[Choice], *, prompts: Sequence[Sequence[int]], num_choices: int) -> Finish:
    """Sum the usage up: a prompt counts once, however many choices go on from it."""
    usage = Usage(
        prompt_tokens=sum(map(len, prompts)),
        completion_tokens=sum(choice.num_tokens for choice in choices),
        cached_tokens=sum(choice.num_cached for choice in choices[::num_choices]),
    )
    return Finish(
        reasons={index: choice.reason or "" for index, choice in enumerate(choices)},
        usage=usage,
        stops={index: choice.stop for index, choice in enumerate(choices) if choice.stop is not None},
    )


def _note_events(call: Call, generation: Generation, submitted_ms: float) -> None:
    """Write down when things happened in the engine, where it told."""
    told = [{"submitted_ms": round(submitted_ms, 3), **events} for events in generation.events if events]
    if told:
        call.notes.extra.setdefault(ENGINE, []).extend(told)


def _translate(refusal: EngineRefused, *, kind: Kind) -> LaminaError:
    match refusal.code:
        case "never_fits":
            return ContextTooLong(refusal.message, param=field_of(kind))
        case "queue_full":
            return Overloaded(refusal.message, retry_after_s=refusal.retry_after_s)
        case "bad_params":
            return InvalidRequest(refusal.message)
        case _:
            return BackendError(refusal.message)
