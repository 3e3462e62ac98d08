"""The driver's state machine: events in, commands out; no I/O, no clock."""

from __future__ import annotations

from maggy_like.driver.state_machine.machine import StateMachine

__all__ = ["StateMachine"]
