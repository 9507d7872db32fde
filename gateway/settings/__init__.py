"""The settings: one YAML file, overrides from the environment, refused as a whole where anything is wrong."""

from gateway.refusals import SettingsError
from gateway.settings.environment import process_environment
from gateway.settings.load import DEFAULT_FILE, load_settings, mark_of, parse_settings, read_config
from gateway.settings.tree import BackendSettings, CheckSettings, LimitSettings, ModelSettings, Settings

__all__ = [
    "DEFAULT_FILE",
    "BackendSettings",
    "CheckSettings",
    "LimitSettings",
    "ModelSettings",
    "Settings",
    "SettingsError",
    "load_settings",
    "mark_of",
    "parse_settings",
    "process_environment",
    "read_config",
]
