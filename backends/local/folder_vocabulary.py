"""The vocabulary of a Hugging Face folder: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from backends.local.vocabulary import Vocabulary, VocabularyError


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a model folder; raises `VocabularyError` or `OSError`."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise VocabularyError(f"{folder} has no tokenizer.json")
    text = file.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    parts = json.loads(text)
    config = _read_json(folder / "tokenizer_config.json")
    added_tokens = parts.get("added_tokens", ())
    return Vocabulary(
        tokenizer=tokenizer,
        is_byte_level=_is_byte_level(parts.get("decoder"), file=file),
        added={token["id"]: token["content"] for token in added_tokens},
        special=frozenset(token["id"] for token in added_tokens if token["special"]),
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
        chat_template=_folder_template(folder, config),
    )


def _is_byte_level(decoder: Mapping[str, Any] | None, *, file: Path) -> bool:
    stages = [decoder] if decoder and decoder["type"] != "Sequence" else (decoder or {}).get("decoders", [])
    names = {stage["type"] for stage in stages if stage}
    if "ByteLevel" in names:
        return True
    if "ByteFallback" in names:
        return False
    raise VocabularyError(f"{file} decodes by {sorted(names) or 'nothing'}; ByteLevel and ByteFallback are read")


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: str(entry["template"]) for entry in template}
        return named.get("default")
    return None if template is None else str(template)


def _token_text(token: Any) -> str:
    """A token stands as text, as an object with its text, or not at all."""
    if isinstance(token, Mapping):
        return str(token["content"])
    return "" if token is None else str(token)


def _read_json(file: Path) -> dict[str, Any]:
    parsed = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if not isinstance(parsed, dict):
        raise VocabularyError(f"{file} holds no JSON object")
    return parsed
