"""Checks of arguments and options, with the mistake and the remedy in the message."""

from __future__ import annotations
