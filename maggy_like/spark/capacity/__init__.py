"""The number of tasks that a session can run, and the executors that come and go."""

from __future__ import annotations
