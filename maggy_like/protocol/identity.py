"""How the driver knows its workers apart."""

from __future__ import annotations

import msgspec


class WorkerId(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a worker.

    Attributes:
        index: The worker's slot in the gang, from 0.
        incarnation: How often this slot has been launched.
    """

    index: int
    incarnation: int
