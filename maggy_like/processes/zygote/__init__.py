"""A process that has imported what workers need, and forks them: a search after the first imports nothing again."""

from __future__ import annotations
