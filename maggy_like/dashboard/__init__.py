"""The dashboard: runs as pages in a browser, live, from their files. It only reads (ADR 69)."""

from __future__ import annotations

from maggy_like.argument_checks import require
from maggy_like.display.dashboard_link import Dashboard


def serve(where: str, host: str, port: int | None, *, opens_browser: bool) -> None:
    """Implement ``maggy-like dashboard``: serve until Ctrl-C. Without ``port``, take the usual one if it is free."""
    require("plotly", "dashboard")
    from maggy_like.dashboard import server  # loads plotly

    server.serve(where, host, port, opens_browser=opens_browser)


def open_dashboard(where: str, port: int = 0) -> Dashboard:
    """Implement :meth:`maggy_like.Result.dashboard`: serve in a thread."""
    require("plotly", "dashboard()")
    from maggy_like.dashboard import server

    return server.open_dashboard(where, port)
