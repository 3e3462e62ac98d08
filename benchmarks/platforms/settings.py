"""All settings, by name."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.platforms import addresses, cancels, connect, elastic, fixed, shipping, stores
from benchmarks.platforms.outcome import Outcome

SETTINGS: dict[str, Callable[[], Outcome]] = {
    **fixed.SETTINGS,
    **elastic.SETTINGS,
    **cancels.SETTINGS,
    **connect.SETTINGS,
    **shipping.SETTINGS,
    **addresses.SETTINGS,
    **stores.SETTINGS,
}

QUICK = ("local processes", "local[2]", "standalone", "dynamic allocation", "cancelJobGroup")
"""What ``--quick`` runs."""
