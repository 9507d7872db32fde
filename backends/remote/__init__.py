"""Backends behind HTTP: what they have in common, whatever format they speak."""

from backends.remote.backend import RemoteBackend, Timeouts
from backends.remote.wire import Ask, Decoder, Wire, WireFault

__all__ = ["Ask", "Decoder", "RemoteBackend", "Timeouts", "Wire", "WireFault"]
