"""The driver: the state machine, the loop that feeds it, the optimizer's process, and the workers' supervisor."""

from __future__ import annotations
