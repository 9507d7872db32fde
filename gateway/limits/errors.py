"""What a caller is told by its limits."""

from __future__ import annotations

from orchestration.core.errors import LaminaError, LimitReached


class StoreLost(Exception):
    """The counters' store, or the log in SQL behind it, does not answer; whether a script ran is not known."""


class BudgetExceeded(LimitReached):
    """The caller's budget for this window cannot pay for the call: trying again before the window ends is no use."""

    type = "insufficient_quota"
    code = "budget_exceeded"


class LimitsUnavailable(LaminaError):
    """The counters cannot be asked, and the caller has a budget that nobody could hold it to."""

    status = 503
    type = "server_error"
    code = "limits_unavailable"


class KeysUnavailable(LaminaError):
    """The table of keys could not be read yet, so nobody's key can be told from a wrong one."""

    status = 503
    type = "server_error"
    code = "keys_unavailable"
