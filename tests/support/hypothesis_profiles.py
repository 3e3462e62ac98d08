"""How many random examples a property is tried with: all in ``make test-long``, a fifth otherwise."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE", "quick") == "thorough"

DEFAULT = 100
"""Examples of a property that names no number of its own (Hypothesis's default)."""


def examples(thorough: int) -> int:
    """The number of examples: ``thorough`` in ``make test-long``, and a fifth of it otherwise."""
    return thorough if IS_THOROUGH else max(5, thorough // 5)


def load_profile() -> None:
    """Use the same examples each time, however slow the machine is just now."""
    settings.register_profile(
        "maggy_like",
        deadline=None,
        derandomize=True,
        max_examples=examples(DEFAULT),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("maggy_like")
