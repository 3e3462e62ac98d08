"""Spark's own servers on one machine, started from the pip package: a standalone cluster, a Connect server."""

from __future__ import annotations
