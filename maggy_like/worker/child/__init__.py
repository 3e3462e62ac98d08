"""The child: the process that runs the training function, and what that function holds in its hands."""

from __future__ import annotations
