"""The agent: it has the socket to the driver, and launches and supervises a child for each trial."""

from __future__ import annotations
