"""Search spaces: domains, conditions, priors and constraints."""

from __future__ import annotations
