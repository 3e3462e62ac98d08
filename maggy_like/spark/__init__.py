"""Spark support: the engine, sessions with suitable settings, and a small cluster or server for tests."""

from __future__ import annotations

from maggy_like.argument_checks import require

require("pyspark", "Spark")
