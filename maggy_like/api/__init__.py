"""The public functions ``lagom``, ``ablate`` and ``run``, and the checks of their arguments."""

from __future__ import annotations
