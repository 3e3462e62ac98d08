"""Results of runs: loading, tables, plots, reports and exports."""

from __future__ import annotations
