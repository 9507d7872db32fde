"""The hot endpoints: plain functions of an `Exchange`, with no framework between them and the wire."""

from gateway.endpoints.generation import Generation
from gateway.endpoints.health import Health
from gateway.endpoints.live import Live
from gateway.endpoints.models import Models
from gateway.endpoints.stream import Stream
from gateway.endpoints.tokens import Tokens

__all__ = ["Generation", "Health", "Live", "Models", "Stream", "Tokens"]
