"""Bridges to other libraries' samplers. What they need is imported at the first ask."""

from __future__ import annotations

from optimizers.samplers.adapters.optuna import TPE, OptunaSampler

__all__ = ["TPE", "OptunaSampler"]
