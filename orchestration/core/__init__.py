"""The vocabulary and the onion: what every other folder speaks. Standard library only."""

from orchestration.core.call import CacheControl, Call, Controls
from orchestration.core.events import Delta, Event, Finish, Part, Start, Usage
from orchestration.core.notes import Attempt, CacheNote, CacheStatus, Candidate, CheckNote, Notes
from orchestration.core.pipeline import compose
from orchestration.core.protocols import Backend, Handler, Layer
from orchestration.core.request import Kind, Request
from orchestration.core.route import Price, Route
from orchestration.core.router import Router
from orchestration.core.secret import Secret

__all__ = [
    "Attempt",
    "Backend",
    "CacheControl",
    "CacheNote",
    "CacheStatus",
    "Call",
    "Candidate",
    "CheckNote",
    "Controls",
    "Delta",
    "Event",
    "Finish",
    "Handler",
    "Kind",
    "Layer",
    "Notes",
    "Part",
    "Price",
    "Request",
    "Route",
    "Router",
    "Secret",
    "Start",
    "Usage",
    "compose",
]
