"""Which bar should the semantic cache have? What the log says, at the price of a wrong answer."""

from logging_layer.tuning.prices import Prices
from logging_layer.tuning.scored import Scored, ScoredFault, read_scored
from logging_layer.tuning.sweep import Point, sweep

__all__ = ["Point", "Prices", "Scored", "ScoredFault", "read_scored", "sweep"]
