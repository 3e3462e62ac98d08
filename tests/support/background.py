"""Searches in the background that their own callbacks stop."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from maggy_like import RunHandle


class Background:
    """Runs a search in the background and waits for it; its callbacks may stop it."""

    def __init__(self) -> None:
        self._handle: Future[RunHandle[Any]] = Future()

    def run(self, search: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The result of ``search(*args, **options)``, which passes ``block`` on."""
        self._handle.set_result(search(*args, **options, block=False))
        return self._handle.result().result()

    def stop(self) -> None:
        """Stop the search, from a callback or another thread."""
        self._handle.result().stop()
