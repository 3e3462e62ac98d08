"""Processes on one machine: how they start, what they share, and when they end."""

from __future__ import annotations
