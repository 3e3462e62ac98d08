"""The contract of optimizers and schedulers as a suite of checks, for those built in and your own."""

from __future__ import annotations

from optimizers.testing.conformance import SPACES, check_optimizer

__all__ = ["SPACES", "check_optimizer"]
