"""Policies by the names that settings give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cache.policies.calibrated import CalibratedPolicy
from cache.policies.policy import Policy
from cache.policies.scorer import load_model
from cache.policies.static import StaticPolicy


def build_policy(name: str, *, threshold: float, wrong_to_call_cost: float) -> Policy:
    """Make the policy of a name; raises `ValueError` that lists the names for another one.

    `threshold` is the cosine bar of `static`, `wrong_to_call_cost` the price from which `calibrated` has its own.
    """
    builders: Mapping[str, Callable[[], Policy]] = {
        "static": lambda: StaticPolicy(threshold),
        "calibrated": lambda: CalibratedPolicy(load_model(), wrong_to_call_cost=wrong_to_call_cost),
    }
    if name not in builders:
        raise ValueError(f"no policy is called {name!r}; there are: {', '.join(builders)}")
    return builders[name]()
