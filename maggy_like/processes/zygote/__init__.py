"""A process that has imported what workers need and forks them, so that later searches import nothing again."""

from __future__ import annotations
