"""Bayesian optimization on a Gaussian process, for asynchronous search over mixed spaces."""

from __future__ import annotations

from optimizers.samplers.bayesian.search import BayesianSearch

__all__ = ["BayesianSearch"]
