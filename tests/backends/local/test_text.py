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

# What transformers' tokenizer of the same GGUF gives; the long test compares it with transformers itself.
EXPECTED = json.loads((Path(__file__).parent / "expected_tokens.json").read_text())
CHAT = [
    {"role": "system", "content": "Be <b>brief</b>."},
    {"role": "user", "content": "Hi 🙂\n"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "What's up?"},
]


@pytest.fixture(scope="session")
def oracle(language_model: Path) -> Any:
    """Give transformers' tokenizer of the same GGUF, with the single digits that it does not take from the file."""
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(str(language_model.parent), gguf_file=language_model.name)
    stages = [pre_tokenizers.Digits(individual_digits=True), oracle.backend_tokenizer.pre_tokenizer]
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(stages)
    return oracle


@pytest.mark.parametrize("case", EXPECTED["texts"], ids=lambda case: ascii(case["text"][:12]))
async def test_token_ids_and_their_text_are_those_of_transformers(text: LocalText, case: dict[str, Any]) -> None:
    assert await text.encode(case["text"]) == case["ids"]
    assert text.decode(case["ids"]) == case["decoded"]


def test_the_chat_template_renders_as_transformers_does(text: LocalText) -> None:
    assert [text.render_chat(CHAT), text.render_chat(CHAT[1:2])] == EXPECTED["chats"]


@pytest.mark.long
async def test_transformers_still_gives_what_is_expected(oracle: Any) -> None:
    for case in EXPECTED["texts"]:
        assert oracle.encode(case["text"]) == case["ids"]
        assert oracle.decode(case["ids"], skip_special_tokens=True) == case["decoded"]
    chats = [oracle.apply_chat_template(part, tokenize=False, add_generation_prompt=True) for part in (CHAT, CHAT[1:2])]
    assert chats == EXPECTED["chats"]


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


async def test_a_folder_gives_the_same_ids_as_the_gguf(text: LocalText, tmp_path: Path) -> None:
    text._tokenizer.enable_truncation(4)
    text._tokenizer.save(str(tmp_path / "tokenizer.json"))
    text._tokenizer.no_truncation()
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    folder = LocalText.load(tmp_path)

    for case in EXPECTED["texts"]:
        assert await folder.encode(case["text"]) == case["ids"]
        assert folder.decode(case["ids"]) == case["decoded"]
    assert folder.render_chat(CHAT[1:]) == "<s>Hi 🙂\n</s>"


@pytest.mark.parametrize("form", ["file", "named"])
def test_a_folders_template_is_found_where_it_lies(text: LocalText, tmp_path: Path, form: str) -> None:
    text._tokenizer.save(str(tmp_path / "tokenizer.json"))
    if form == "file":
        (tmp_path / "chat_template.jinja").write_text("from {{ messages[0].role }}")
    else:
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "from {{ messages[0].role }}"}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))

    assert LocalText.load(tmp_path).render_chat(CHAT) == "from system"


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
