"""How many tasks a session can run, and the executors that come and go."""

from __future__ import annotations
