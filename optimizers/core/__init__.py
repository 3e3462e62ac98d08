"""Studies, trials and events, and the protocol of optimizers and schedulers."""

from __future__ import annotations
