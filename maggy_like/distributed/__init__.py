"""Training of one model by several workers; the only part of a worker that uses torch."""

from __future__ import annotations

from maggy_like.argument_checks import require

require("torch", "training on several workers")
