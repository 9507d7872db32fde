from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from sentence_transformers import SentenceTransformer

from cache.encoder import Encoder, Vectors

FRANCE = "What is the capital of France?"
TEXTS = [
    FRANCE,
    "What's the capital of France?",
    "What city is France's capital?",
    "What is the capital of New France?",
    "What is the capital of Germany?",
    "Which river flows through Paris, and how long is it from its source to the sea?",
    "turn on dark mode",
    "def add(a, b): return a + b",
    "Wie heißt die Hauptstadt von Frankreich?",
    "word " * 180,
]


@pytest.fixture(scope="module")
def reference(embedding_model: Path) -> Vectors:
    model = SentenceTransformer(str(embedding_model), device="cpu", local_files_only=True)
    model.tokenizer.backend_tokenizer.no_truncation()
    return np.asarray(model.encode(TEXTS, normalize_embeddings=True), np.float32)


def encode(encoder: Encoder, texts: list[str]) -> Vectors:
    return encoder.encode(encoder.tokenize(texts))


def test_fp32_gives_what_sentence_transformers_gives(exported: Callable[[str], Path], reference: Vectors) -> None:
    vectors = encode(Encoder(exported("fp32")), TEXTS)

    assert np.einsum("nd,nd->n", vectors, reference).min() > 0.99999


def test_int8_moves_cosines_by_little(encoder: Encoder, reference: Vectors) -> None:
    vectors = encode(encoder, TEXTS)

    moved = np.abs(vectors @ vectors.T - reference @ reference.T)
    assert moved.mean() < 0.008
    assert moved.max() < 0.03


def test_int8_keeps_paraphrases_above_the_default_bar_and_another_country_below(encoder: Encoder) -> None:
    france, whats, city, new_france, germany, *_ = encode(encoder, TEXTS)

    assert france @ whats > 0.98
    assert france @ city > 0.95
    assert france @ new_france < 0.93
    assert france @ germany < 0.7


def test_a_vector_does_not_depend_on_its_batch(encoder: Encoder) -> None:
    alone = np.concatenate([encode(encoder, [text]) for text in TEXTS])
    together = encode(encoder, TEXTS)

    assert np.einsum("nd,nd->n", alone, together).min() > 0.99999


def test_attention_is_whole_and_no_product_by_weights_is_left_in_32_bits(exported: Callable[[str], Path]) -> None:
    operations = Counter(node.op_type for node in onnx.load(str(exported("int8") / "model.onnx")).graph.node)

    assert operations["MultiHeadAttention"] == 6
    assert operations["MatMulIntegerToFloat"] == 6 * 4  # queries, keys and values are one product
    assert operations["MatMul"] == 0


def test_vectors_have_length_one(encoder: Encoder) -> None:
    assert np.allclose(np.linalg.norm(encode(encoder, TEXTS), axis=1), 1.0, atol=1e-5)


def test_tokens_are_counted_beyond_where_the_shipped_tokenizer_truncates(encoder: Encoder) -> None:
    [row] = encoder.tokenize(["word " * 300])

    assert len(row) == 302
    assert encoder.max_tokens == 256


def test_an_unknown_token_is_told(encoder: Encoder) -> None:
    known, unknown = encoder.tokenize(["What does a unicorn mean?", "What does \U0001f984 mean?"])

    assert not known.has_unknown
    assert unknown.has_unknown


def test_revision_names_model_hash_and_precision(encoder: Encoder) -> None:
    name, _, rest = encoder.revision.partition("@")

    assert name == "all-minilm-l6-v2"
    assert rest.endswith("/int8-2")


def test_serving_needs_no_torch() -> None:
    script = "import sys, cache.owner; sys.exit('torch' in sys.modules or 'sentence_transformers' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
