"""Quantised matrices, and the plain arithmetic over them that every faster way must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

GROUP = 32
"""Inputs that share a scale where weights have 4 bits; as in int4.h."""

QUANTIZATIONS = ("none", "int8", "int4")
"""How the weights are kept: as they are, in 8 bits, or in 4 bits with the embedding and the head in 8."""


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """Weight (out, in) = code * scale of its output: codes (out, in) int8 from -127 to 127, scales (out,) float32."""

    codes: torch.Tensor
    scales: torch.Tensor

    def map_rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Int8Matrix:
        """Return a matrix whose rows were rearranged by `change`, which takes anything of one row per output."""
        return Int8Matrix(change(self.codes), change(self.scales))

    def rows(self, index: torch.Tensor) -> torch.Tensor:
        """Return rows (N, in) as float32."""
        return self.codes[index].float() * self.scales[index, None]


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """Weight (out, in) = code * scale + least of its group of 32 inputs.

    Codes (out, in) are uint8 from 0 to 15; scales and least values (out, in / 32) are float16.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    leasts: torch.Tensor

    def map_rows(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Int4Matrix:
        """Return a matrix whose rows were rearranged by `change`, which takes anything of one row per output."""
        return Int4Matrix(change(self.codes), change(self.scales), change(self.leasts))

    def unpack(self) -> torch.Tensor:
        """Return the values (out, in) as float32."""
        groups = self.codes.float().view(len(self.codes), -1, GROUP)
        values: torch.Tensor = groups * self.scales.float()[..., None] + self.leasts.float()[..., None]
        return values.flatten(1)


Matrix = torch.Tensor | Int8Matrix | Int4Matrix


def to_int8(matrix: torch.Tensor) -> Int8Matrix:
    """Return a matrix (out, in) in 8 bits, the largest value of each output at the end of the codes."""
    codes, scales = quantise_rows(matrix.float())
    return Int8Matrix(codes.to(torch.int8), scales)


def to_int4(matrix: torch.Tensor) -> Int4Matrix:
    """Return a matrix (out, in) in 4 bits; `in` must be a multiple of 32."""
    groups = matrix.float().reshape(len(matrix), -1, GROUP)
    least, most = groups.amin(dim=-1), groups.amax(dim=-1)
    leasts, scales = least.half(), ((most - least) / 15).half()
    steps = scales.float()[..., None]
    codes = torch.where(steps > 0, (groups - leasts.float()[..., None]) / steps, 0).round_().clamp_(0, 15)
    return Int4Matrix(codes.flatten(1).to(torch.uint8), scales, leasts)


def quantise_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (N, width) of float32 rows, whole numbers from -127 to 127 as float32, and their scales (N,).

    A row depends on no other; one that is not made of finite numbers has a scale that is none.
    """
    most = rows.abs().amax(dim=-1)
    by = torch.where(most > 0, torch.full_like(most, 127).div(most), 0)  # `127 / most` rounds twice
    codes = (rows * by[:, None]).round()
    is_finite = torch.isfinite(most)
    return codes.nan_to_num(0.0), torch.where(is_finite, most / 127, torch.nan)


def linear(x: torch.Tensor, matrix: Matrix) -> torch.Tensor:
    """Return x (N, in) times a matrix (out, in), transposed.

    A quantised matrix gives float32, and meets rows of 8 bits: with one scale a row where its weights have 8 bits, so
    that sums are exact integers, and with one scale a group where they have 4.
    """
    if isinstance(matrix, torch.Tensor):
        return F.linear(x, matrix)
    if isinstance(matrix, Int4Matrix):
        codes, scales = quantise_rows(x.float().reshape(-1, GROUP))
        return F.linear((codes * scales[:, None]).view_as(x), matrix.unpack())
    codes, scales = quantise_rows(x.float())
    sums = F.linear(codes.double(), matrix.codes.double()).float()
    return sums * (matrix.scales * scales[:, None])


def rows_of(matrix: Matrix, index: torch.Tensor) -> torch.Tensor:
    """Return rows (N, in) of an embedding (V, in), as float32."""
    if isinstance(matrix, Int4Matrix):
        raise TypeError("an embedding has 8 bits or more")
    return F.embedding(index, matrix).float() if isinstance(matrix, torch.Tensor) else matrix.rows(index)


def join(parts: Sequence[Matrix]) -> Matrix:
    """Return matrices of one kind below one another."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat([part for part in parts if isinstance(part, torch.Tensor)])
    if isinstance(first, Int8Matrix):
        eights = [part for part in parts if isinstance(part, Int8Matrix)]
        return Int8Matrix(*(torch.cat([getattr(part, name) for part in eights]) for name in ("codes", "scales")))
    fours = [part for part in parts if isinstance(part, Int4Matrix)]
    names = ("codes", "scales", "leasts")
    return Int4Matrix(*(torch.cat([getattr(part, name) for part in fours]) for name in names))
