"""The bytes behind each token id."""

from __future__ import annotations

from backends.local.vocabulary import Vocabulary


def _byte_alphabet() -> dict[str, int]:
    """Give GPT-2's alphabet: printable bytes stand for themselves, the others for the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Pieces:
    """Give the bytes that a token id stands for; computed once per token.

    A token that steers the model (end of turn, padding) stands for no bytes, and so does an id without a token:
    an engine may pad its vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._added = vocabulary.added
        self._known = {index: text.encode() for index, text in vocabulary.added.items()}
        self._known.update(dict.fromkeys(vocabulary.special, b""))
        self._spell = self._from_alphabet if vocabulary.is_byte_level else _from_text
        self._alphabet = _byte_alphabet()

    def __getitem__(self, token_id: int) -> bytes:
        """Return the token's bytes, which need not be whole characters."""
        piece = self._known.get(token_id)
        if piece is None:
            token = self._tokenizer.id_to_token(token_id)
            piece = self._known[token_id] = b"" if token is None else self._spell(token)
        return piece

    def spell(self, token_id: int) -> bytes:
        """Return the token's bytes, a special one's name: what a prompt would have to say to hold it."""
        named = self._added.get(token_id)
        return self[token_id] if named is None else named.encode()

    def label(self, token_id: int) -> str:
        """Return how the token is shown to a reader: special ones by name, broken characters as U+FFFD."""
        return self._added.get(token_id) or self[token_id].decode("utf-8", "replace")

    def _from_alphabet(self, token: str) -> bytes:
        alphabet = self._alphabet
        if all(letter in alphabet for letter in token):
            return bytes(alphabet[letter] for letter in token)
        return token.encode()


def _from_text(token: str) -> bytes:
    is_byte = len(token) == 6 and token.startswith("<0x") and token.endswith(">")
    return bytes([int(token[3:5], 16)]) if is_byte else token.replace("\u2581", " ").encode()
