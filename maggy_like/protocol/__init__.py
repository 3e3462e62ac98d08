"""What the driver and its workers say to each other: messages, their fields, and the task that a worker gets."""

from __future__ import annotations
