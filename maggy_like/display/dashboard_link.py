"""An open dashboard as its caller sees it: an address, in a notebook a frame."""

from __future__ import annotations

import html
from collections.abc import Callable
from types import TracebackType

HEIGHT = 760
"""Pixels of the frame in a notebook."""


class Dashboard:
    """A dashboard that this process serves. A notebook shows it as a frame below a link.

    It ends with :meth:`close`, at the end of a ``with`` block, or with the process.

    Attributes:
        url: Its address.

    Example:
        >>> with result.dashboard() as dashboard:
        ...     print(dashboard)
        http://127.0.0.1:...
    """

    def __init__(self, url: str, close: Callable[[], None]) -> None:
        self.url = url
        self._close = close

    def close(self) -> None:
        """Stop serving it."""
        self._close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return self.url

    def _repr_html_(self) -> str:
        url = html.escape(self.url)
        return (
            f'<p><a href="{url}" target="_blank" rel="noopener">{url}</a></p>'
            f'<iframe src="{url}" title="dashboard" loading="lazy" '
            f'style="width: 100%; height: {HEIGHT}px; border: 1px solid rgba(128,128,128,.3)"></iframe>'
        )
