"""Why a start is refused: each in one line that says what is wrong and what would be right."""

from __future__ import annotations


class Refused(Exception):
    """The base: the message is all that a person needs to see."""

    exit_code = 1


class SettingsError(Refused):
    """The settings are wrong: the message names the setting by its path."""

    exit_code = 2


class StartRefused(Refused):
    """A part that is needed is missing, taken or does not answer."""
