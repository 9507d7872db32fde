"""Settings that the file's shape knows and this version does not honour: refused by name, never ignored."""

from __future__ import annotations

from gateway.refusals import SettingsError
from gateway.settings.tree import Settings


def check_built(settings: Settings) -> None:
    """Raise `SettingsError` for the first setting that would silently do nothing."""
    if settings.cache.semantic.policy == "verified":
        raise SettingsError(
            "cache.semantic.policy: 'verified' is not built in this version, for want of a cross-encoder; "
            "leave it at static, or take calibrated"
        )
