"""Waits on several descriptors at once, and calls who cares for each."""

from __future__ import annotations

import math
from collections.abc import Callable

import zmq

Handler = Callable[[], None]


class Watch:
    """A poller with a handler for each descriptor or socket."""

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._handlers: dict[int | zmq.Socket[bytes], Handler] = {}

    def __contains__(self, source: int) -> bool:
        return source in self._handlers

    def add(self, source: int | zmq.Socket[bytes], handler: Handler) -> None:
        """Call ``handler`` whenever ``source`` can be read."""
        self._handlers[source] = handler
        self._poller.register(source, zmq.POLLIN)

    def remove(self, source: int | None) -> None:
        """Watch it no more; fine if it was not watched."""
        if source is not None and self._handlers.pop(source, None) is not None and source in self._poller:
            self._poller.unregister(source)

    def pause(self, source: int, paused: bool) -> None:
        """Leave what comes from ``source`` where it is for now, or go on with it; fine if it is not watched."""
        if source in self._handlers and paused is (source in self._poller):
            self._poller.register(source, 0 if paused else zmq.POLLIN)

    def poll(self, seconds: float) -> None:
        """Wait that long at most, and call the handlers that are due."""
        for source, _ in self._poller.poll(math.ceil(seconds * 1000)):
            if (handler := self._handlers.get(source)) is not None:  # else another handler has removed it
                handler()
