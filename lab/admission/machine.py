"""What a step costs on a machine that is not here, by a stated model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """A roofline: a step takes max(read the weights, multiply its tokens) + read the KV of its requests.

    `weights_s` is the time to read all weights once, `token_s` the arithmetic of one token, `kv_token_s` the time to
    read the keys and values of one token that an attention looks back on, `step_s` what every step costs besides.
    """

    name: str
    kv_tokens: int
    weights_s: float
    token_s: float
    kv_token_s: float
    step_s: float = 0.001
    max_num_seqs: int = 256
    max_batched_tokens: int = 2048

    def cost_s(self, *, num_tokens: int, num_kv_tokens: int) -> float:
        """Return how long a step of so many tokens takes, whose requests hold so many in all."""
        return self.step_s + max(self.weights_s, num_tokens * self.token_s) + num_kv_tokens * self.kv_token_s


# An A100-40GB reads 1.55 TB/s and multiplies 312 TFLOP/s in bf16; 85 % and 50 % of that are taken as reached.
_BYTES_PER_S = 1.55e12 * 0.85
_FLOP_PER_S = 312e12 * 0.5

OPT_13B = Machine(
    name="OPT-13B, A100-40GB",
    kv_tokens=15_000,  # (40 GB x 0.95 - 26 GB of weights) / 0.82 MB: 40 layers of 5,120, keys and values, in 16 bits
    weights_s=26e9 / _BYTES_PER_S,
    token_s=2 * 13e9 / _FLOP_PER_S,
    kv_token_s=819_200 / _BYTES_PER_S,
)
LLAMA_3_8B = Machine(
    name="Llama-3-8B, A100-40GB",
    kv_tokens=150_000,  # (40 GB x 0.9 - 16 GB) / 0.13 MB: 32 layers of 8 heads of 128, keys and values, in 16 bits
    weights_s=16e9 / _BYTES_PER_S,
    token_s=2 * 8e9 / _FLOP_PER_S,
    kv_token_s=131_072 / _BYTES_PER_S,
    max_num_seqs=512,
)
