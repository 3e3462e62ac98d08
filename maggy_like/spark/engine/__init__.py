"""The engine whose workers are tasks of a Spark session."""

from __future__ import annotations
