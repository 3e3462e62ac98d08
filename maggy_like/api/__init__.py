"""What people call: ``lagom``, ``ablate``, ``run``, and the checks of their arguments."""

from __future__ import annotations
