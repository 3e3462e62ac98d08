"""The kinds of failure, for workers too: they load nothing else of the search library."""

from __future__ import annotations

from optimizers.core.trial import FailureKind

__all__ = ["FailureKind"]
