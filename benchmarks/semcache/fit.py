"""Fit the pooled scorer on the `dev` pairs: `python -m benchmarks.semcache.fit`. Writes `cache/policies/pooled.json`.

The guard's lists were written with these pairs in view, so on them it misses fewer traps than it will elsewhere. The
fit therefore sees every pair several times, each time with three tenths of the lists' words forgotten at random: what
then passes the guard is what passes it where the words are new. Signs are held (a nearer cosine never lowers P, a word
more on one side never raises it), which 26 such traps alone could not teach. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache.guard import GUARD_VERSION, Guard, load_guard
from cache.guard.lexicon import SILENT, Lexicon
from cache.policies.features import FEATURES_VERSION, Features, feature_names, features_of
from cache.policies.scorer import DEFAULT_MODEL
from lab.bench.cache.embedding import Vectors, find_encoder

DATA = Path(__file__).parents[1] / "data" / "semcache" / "pairs.jsonl"
NUM_FORGETTINGS = 12
FORGOTTEN_SHARE = 0.3
RIDGE = 0.5
NUM_STEPS = 20_000
ENTRY_VARIANCE = 0.25
"""How far entries' logits lie apart is not to be learned from pairs: a prior of half a logit either way."""
SAME_WEIGHT = 0.2
"""What a question beside itself counts for: its answer is right, and no pair says so."""
SIGNS = {"similarity": 1, "least_shared": 1, "one_sided": -1, "special": -1, "names_apart": -1, "denies_otherwise": -1}

Matrix = NDArray[np.float64]
Row = Mapping[str, Any]


def main() -> None:
    """Fit, print the weights, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept-in", type=Path, default=Path(".lamina/bench"), help="folder for vectors")
    parser.add_argument("--out", type=Path, default=DEFAULT_MODEL)
    options = parser.parse_args()
    rows = [row for row in map(json.loads, DATA.read_text(encoding="utf-8").splitlines()) if row["part"] == "dev"]
    vectors = Vectors(find_encoder(), kept_in=options.kept_in)
    features, correct = passing(rows, similarities(rows, vectors))
    weight = np.full(len(correct), 1.0 / NUM_FORGETTINGS)
    itself = np.tile(Features(1.0).values(), (len(rows), 1))
    model = fit(
        np.r_[features, itself],
        np.r_[correct, np.ones(len(rows))],
        weight=np.r_[weight, np.full(len(rows), SAME_WEIGHT)],
    )
    model["fitted_on"] = {
        "pairs": len(rows),
        "passing": round(len(correct) / NUM_FORGETTINGS, 1),
        "correct_share": round(float(correct.mean()), 4),
        "guard": GUARD_VERSION,
        "embedder": vectors.revision,
    }
    options.out.write_text(json.dumps(model, indent=1) + "\n")
    print(json.dumps(model["fitted_on"]), dict(zip(["constant", *feature_names()], model["weights"], strict=True)))


def similarities(rows: Sequence[Row], vectors: Vectors) -> list[float]:
    """Return each pair's cosine."""
    known = vectors.of(text for row in rows for text in (row["a"], row["b"]))
    return [float(known[row["a"]] @ known[row["b"]]) for row in rows]


def passing(rows: Sequence[Row], cosines: Sequence[float]) -> tuple[Matrix, Matrix]:
    """Return features (n, F) and labels (n) of what passes the guard, over all forgettings."""
    lexicon = load_guard().lexicon
    features, correct = [], []
    for seed in range(NUM_FORGETTINGS):
        guard = Guard(forgetful(lexicon, seed))
        for row, cosine in zip(rows, cosines, strict=True):
            pair = guard.compare(guard.read(row["a"]), guard.read(row["b"]))
            if guard.judge(pair) is None:
                features.append(features_of(cosine, pair, guard.lexicon).values())
                correct.append(float(row["same_answer"]))
    return np.array(features), np.array(correct)


def forgetful(lexicon: Lexicon, seed: int) -> Lexicon:
    """Return the lists without a share of their synonyms, phrases, opposites and contrasts."""
    draw = random.Random(seed)

    def is_kept() -> bool:
        return draw.random() >= FORGOTTEN_SHARE

    canonical = {
        word: stands if stands == SILENT or stands.startswith("#") or is_kept() else word
        for word, stands in lexicon.canonical_of.items()
    }
    phrases = {
        first: tuple(phrase for phrase in them if phrase.canonical == SILENT or is_kept())
        for first, them in lexicon.phrases.items()
    }
    lost = {word for word in lexicon.opposites if not is_kept()}
    return replace(
        lexicon,
        canonical_of=canonical,
        phrases=phrases,
        kinds={word: kinds for word, kinds in lexicon.kinds.items() if is_kept()},
        opposites={word: them - lost for word, them in lexicon.opposites.items() if word not in lost},
        remembered={},
    )


def fit(features: Matrix, correct: Matrix, *, weight: Matrix) -> dict[str, Any]:
    """Fit by projected gradient steps on the ridge-penalised likelihood; the covariance is its inverse curvature."""
    means, scales = features.mean(0), features.std(0) + 1e-9
    z = np.c_[np.ones(len(features)), (features - means) / scales]
    ridge = np.array([1e-3, *[RIDGE] * features.shape[1]])
    signs = np.array([SIGNS[name] for name in feature_names()])
    rate = 1.0 / (0.25 * np.linalg.eigvalsh((z.T * weight) @ z)[-1] + RIDGE)
    weights = np.zeros(z.shape[1])
    for _ in range(NUM_STEPS):
        chance = 1.0 / (1.0 + np.exp(-z @ weights))
        weights -= rate * (z.T @ (weight * (chance - correct)) + ridge * weights)
        weights[1:] = np.where(weights[1:] * signs < 0, 0.0, weights[1:])
    chance = 1.0 / (1.0 + np.exp(-z @ weights))
    curvature = (z.T * (weight * chance * (1.0 - chance))) @ z + np.diag(ridge)
    return {
        "version": f"pooled-{FEATURES_VERSION}.{GUARD_VERSION}",
        "features": list(feature_names()),
        "features_version": FEATURES_VERSION,
        "means": rounded(means),
        "scales": rounded(scales),
        "weights": rounded(weights),
        "covariance": [rounded(line) for line in np.linalg.inv(curvature)],
        "entry_variance": ENTRY_VARIANCE,
    }


def rounded(values: Matrix) -> list[float]:
    """Write numbers to six places."""
    return [round(float(value), 6) for value in values]


if __name__ == "__main__":
    main()
