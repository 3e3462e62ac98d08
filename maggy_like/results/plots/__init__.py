"""The pictures of a run, made with plotly: each alone, and together in the report."""

from __future__ import annotations
