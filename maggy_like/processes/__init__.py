"""Ties and channels between processes of one machine."""

from __future__ import annotations
