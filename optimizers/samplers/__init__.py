"""Optimizers that propose configurations."""

from __future__ import annotations
