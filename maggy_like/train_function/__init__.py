"""The user's training function: what it takes, how it travels, and how it is called."""

from __future__ import annotations
