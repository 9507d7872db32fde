"""Decisions made again from the log alone: each must come out as it was recorded."""

from gateway.replay.finding import Finding, Verdict
from gateway.replay.replay import Replay, Tally

__all__ = ["Finding", "Replay", "Tally", "Verdict"]
