"""Randomness as a function: one number for a seed and a position, the same in any batch, order and process."""

from __future__ import annotations

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing but the two arguments (of which 64 bits count)."""
    return (_mix(_mix(seed & _MASK) ^ (position & _MASK)) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    """Spread 64 bits over 64 bits: the finaliser of SplitMix64 after its increment."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
