"""How far each sink has come in each segment, kept in one small file per sink beside the segments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from logging_layer.codec import decode, encode

SUFFIX = ".progress"


def load_progress(folder: Path, sink: str) -> dict[str, int]:
    """Return the byte offset up to which a sink has each segment; a file that cannot be read says: nothing.

    Sending again does no harm, since every sink keeps a call once.
    """
    try:
        saved = decode((folder / f"{sink}{SUFFIX}").read_bytes())
        return {str(name): int(offset) for name, offset in saved.items()}
    except (FileNotFoundError, ValueError, AttributeError, TypeError):
        return {}


def save_progress(folder: Path, sink: str, offsets: Mapping[str, int]) -> None:
    """Replace a sink's file in one step; raises `OSError`."""
    path = folder / f"{sink}{SUFFIX}"
    scratch = path.with_suffix(".scratch")
    scratch.write_bytes(encode(dict(offsets)))
    os.replace(scratch, path)
