"""The product's own vectors for many texts, kept in a folder between runs."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cache.encoder import Encoder

MODEL = "all-minilm-l6-v2"
_BATCH = 16

Vector = NDArray[np.float32]


class EncoderMissing(Exception):
    """The encoder could not be had; the message says why."""


def find_encoder(model: str = MODEL) -> Path:
    """Return the folder of the exported encoder, fetching and exporting it where it is not here yet."""
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "models", "fetch", model]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    folders = [line.partition(": ")[2].strip() for line in done.stdout.splitlines() if line.startswith(f"{model}: ")]
    if done.returncode != 0 or not folders:
        raise EncoderMissing(done.stderr.strip() or f"lamina models fetch {model} named no folder")
    return Path(folders[-1])


class Vectors:
    """Unit vectors by text, encoded once per text and revision of the encoder."""

    def __init__(self, encoder_folder: Path, *, kept_in: Path) -> None:
        self._encoder = Encoder(encoder_folder, num_threads=2)
        name = hashlib.sha256(self._encoder.revision.encode()).hexdigest()[:12]
        self._file = kept_in / f"vectors-{name}.npz"
        self._known: dict[str, Vector] = {}
        if self._file.exists():
            with np.load(self._file, allow_pickle=False) as kept:
                self._known = dict(zip(kept["texts"].tolist(), kept["vectors"], strict=True))

    @property
    def revision(self) -> str:
        """Name model, content and precision."""
        return self._encoder.revision

    def of(self, texts: Iterable[str]) -> Mapping[str, Vector]:
        """Return a vector for each text of at most the model's length; longer texts have none."""
        wanted = list(dict.fromkeys(texts))
        missing = [text for text in wanted if text not in self._known]
        if missing:
            self._encode(missing)
            self._save()
        return {text: self._known[text] for text in wanted if text in self._known}

    def _encode(self, texts: list[str]) -> None:
        rows = sorted(zip(texts, self._encoder.tokenize(texts), strict=True), key=lambda row: len(row[1]))
        rows = [(text, tokens) for text, tokens in rows if len(tokens) <= self._encoder.max_tokens]
        for first in range(0, len(rows), _BATCH):
            batch = rows[first : first + _BATCH]
            vectors = self._encoder.encode([tokens for _, tokens in batch])
            self._known.update((text, vector) for (text, _), vector in zip(batch, vectors, strict=True))

    def _save(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        texts, vectors = list(self._known), np.stack(list(self._known.values()))
        scratch = self._file.with_suffix(".tmp.npz")
        np.savez(scratch, texts=np.array(texts), vectors=vectors)
        scratch.replace(self._file)
