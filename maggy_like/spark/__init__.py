"""Spark at hand: the engine, a session with the settings of this project, and a small cluster or server to try."""

from __future__ import annotations

from maggy_like.extras import require

require("pyspark", "Spark")
