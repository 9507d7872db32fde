"""One record per call, however it ends: spool, SQL, and MLflow as its view."""

from logging_layer.call_log import CallLog
from logging_layer.content import ContentMode
from logging_layer.record import CallRecord, Outcome, Phase
from logging_layer.spool import Spool, SpoolLimits
from logging_layer.stages import timed, timed_handler

__all__ = ["CallLog", "CallRecord", "ContentMode", "Outcome", "Phase", "Spool", "SpoolLimits", "timed", "timed_handler"]
