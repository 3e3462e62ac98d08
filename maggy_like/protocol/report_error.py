"""The error that a training function gets for what it reports, returns or saves."""

from __future__ import annotations


class ReportError(ValueError):
    """A report or a returned value is no measurement, or a state cannot be saved; raised inside ``train_fn``."""
