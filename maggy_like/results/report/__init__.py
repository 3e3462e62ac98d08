"""A run as one page of HTML that needs nothing else: no network, no server."""

from __future__ import annotations
