"""The user's training function: its parameters, its pickled form and its call in a trial."""

from __future__ import annotations
