from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from backends.local.text import LocalText
from backends.local.vocabulary import VocabularyError
from orchestration.core.errors import InvalidRequest

CORPUS = [
    "Hello, world! It's a test; we'll see what they've done. I'M HERE.",
    "The year 1984 and 3.14159, 1,000,000 and 0x1F4A9.",
    "def f(x: int) -> int:\n    if x  >  0:\n\treturn x**2\n\n\n    # done\n",
    "日本語のテキスト、中文文本，한국어 텍스트입니다.",
    "🙂👨‍👩‍👧‍👦🏳️‍🌈 é e\u0301 ﬁ ½ ²",
    "Русский текст, ελληνικά, العربية, עברית, हिन्दी",
    " leading and trailing  spaces   \n\r\n\ttabs\u00a0nbsp\u3000wide",
    '{"json": [1, 2, {"a": null}]}\\n\\u00e9',
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x<not_special>",
    "",
    "a" * 300,
    "\x00\x01\x7f\ufffd",
]


@pytest.fixture(scope="session")
def oracle(language_model: Path) -> Any:
    """Give transformers' tokenizer of the same GGUF, with the single digits that it does not take from the file."""
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(str(language_model.parent), gguf_file=language_model.name)
    stages = [pre_tokenizers.Digits(individual_digits=True), oracle.backend_tokenizer.pre_tokenizer]
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
    return oracle


@pytest.mark.parametrize("sample", CORPUS)
async def test_token_ids_are_those_of_transformers(text: LocalText, oracle: Any, sample: str) -> None:
    assert await text.encode(sample) == oracle.encode(sample)


@pytest.mark.parametrize("sample", CORPUS)
async def test_decoding_is_that_of_transformers(text: LocalText, oracle: Any, sample: str) -> None:
    ids = oracle.encode(sample)

    assert text.decode(ids) == oracle.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_the_chat_template_renders_as_transformers_does(text: LocalText, oracle: Any) -> None:
    messages = [
        {"role": "system", "content": "Be <b>brief</b>."},
        {"role": "user", "content": "Hi 🙂\n"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "What's up?"},
    ]

    for part in (messages, messages[1:2]):
        assert text.render_chat(part) == oracle.apply_chat_template(part, tokenize=False, add_generation_prompt=True)


async def test_digits_stand_alone_so_that_spaces_before_them_stay_together(text: LocalText) -> None:
    ids = await text.encode("a  12")

    assert [text.pieces[token_id] for token_id in ids] == [b"a", b"  ", b"1", b"2"]


# The model's vocabulary lacks a few control bytes, and those that characters from U+40000 on begin with.
KNOWN = st.characters(codec="utf-8", max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d")


@given(sample=st.text(KNOWN, max_size=200))
@settings(deadline=None)
def test_decoding_gives_back_what_was_encoded(text: LocalText, sample: str) -> None:
    assert text.decode(asyncio.run(text.encode(sample))) == sample


async def test_a_long_text_is_the_same_and_leaves_the_loop_free(text: LocalText) -> None:
    sample = "The quick brown fox, 世界 123. " * 20_000
    encoding = asyncio.create_task(text.encode(sample))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1

    assert turns > 10
    assert text.decode(await encoding) == sample
    assert text.min_tokens(sample) <= await text.count(sample)


@pytest.mark.parametrize("sample", ["\ud800", "x" * 10_000 + "\udfff"])
async def test_half_a_surrogate_pair_is_refused(text: LocalText, sample: str) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        await text.encode(sample)


async def test_a_folder_gives_the_same_ids_as_the_gguf(text: LocalText, oracle: Any, tmp_path: Path) -> None:
    oracle.save_pretrained(tmp_path)
    folder = LocalText.load(tmp_path)

    for sample in CORPUS:
        assert await folder.encode(sample) == await text.encode(sample)
        assert folder.decode(await folder.encode(sample)) == text.decode(await text.encode(sample))
    assert folder.render_chat([{"role": "user", "content": "x"}]) == text.render_chat(
        [{"role": "user", "content": "x"}]
    )


async def test_a_folder_whose_tokens_are_text_with_bytes_in_it_is_read(tmp_path: Path) -> None:
    vocabulary = {
        "<unk>": 0,
        "<s>": 1,
        **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)},
        "▁": 258,
        "h": 259,
        "▁h": 260,
    }
    tokenizer = {
        "added_tokens": [
            {
                "id": 1,
                "content": "<s>",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [["▁", "h"]],
            "byte_fallback": True,
            "unk_token": "<unk>",
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = LocalText.load(tmp_path)

    ids = await text.encode("h h🙂")

    assert ids == [259, 260, *(2 + byte for byte in "🙂".encode())]
    assert text.decode([1, *ids]) == "h h🙂"
    with pytest.raises(InvalidRequest, match="no chat template"):
        text.render_chat([{"role": "user", "content": "x"}])


def test_a_folder_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"no tokenizer\.json"):
        LocalText.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"nonsense" * 10, b"GGUF" + b"\x03\0\0\0" + b"\x05" + b"\0" * 15])
def test_a_damaged_gguf_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(ValueError, match=r"model\.gguf"):
        LocalText.load(path)


def test_the_text_side_loads_neither_torch_nor_transformers() -> None:
    heavy = ("torch", "transformers", "gguf", "numpy")
    code = f"import sys, backends.local.backend, backends.registry; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
