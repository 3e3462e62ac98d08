"""A dashboard on a directory with the run of a search, and a journal that a test continues."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from report_pages import BEGUN, SPACE, STEPS, write_run
from served import Served

from maggy_like.dashboard.server import Server, make_server
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, RunStatus, backend_of

pytest.importorskip("plotly")


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Serve a directory or a run until the end of the test."""
    opened: list[tuple[Server, threading.Thread]] = []

    def start(where: Path | str, host: str = "127.0.0.1") -> Served:
        server = make_server(str(where), host)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        opened.append((server, thread))
        return Served(server)

    yield start
    for server, thread in opened:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that has ended: 60 trials, two of which failed."""
    return write_run(tmp_path_factory.mktemp("runs"), "august", 60, 4)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The journal of a run that has just begun."""
    journal = Journal(backend_of(str(tmp_path / "live")))
    space = SPACE.to_json()
    journal.begin(RunHeader(FORMAT_VERSION, "live", BEGUN, space, "ASHA(eta=3)", ["max"], ["accuracy"], 0, STEPS))
    journal.note(RunStatus(Ending.RUNNING, BEGUN, environment={"python": "3.11"}, function="train.py:train"))
    yield journal
    journal.close()
