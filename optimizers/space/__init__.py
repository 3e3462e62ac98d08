"""Search spaces: domains, conditions, priors and constraints, and the configurations in them."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
"""Parameter values by name: bool, int, float, str or None, or tuples or lists of them."""
