"""The protocol of the driver and its workers: messages, their fields, and the task that a worker gets."""

from __future__ import annotations
