"""Optimizers that decide how long each trial runs."""

from __future__ import annotations
