"""What functions note that run in the test's own process: they are copies, and their closures too, but not modules."""

from __future__ import annotations

from typing import Any

NOTES: list[Any] = []
