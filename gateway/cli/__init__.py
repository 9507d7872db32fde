"""The command `lamina`."""

from gateway.cli.app import main

__all__ = ["main"]
