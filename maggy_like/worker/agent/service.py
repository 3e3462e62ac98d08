"""Whether a worker serves its run."""

from __future__ import annotations

import enum


class Service(enum.Enum):
    """Whether a worker serves its run, or why it leaves."""

    SERVING = "serving"
    DISMISSED = "dismissed"
    """The driver has said that the run is over."""
    LEAVING = "leaving"
    """The driver refuses it or is silent, its launcher is gone, or it can run no trial."""
