"""``maggy-like stacks`` shows where running trials are, and ``ps`` what each process does."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

import psutil
import pytest

from maggy_like import Reporter, lagom
from maggy_like.command_line import main
from optimizers import Measured

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")


def wait(x: int, reporter: Reporter) -> None:
    reporter.report(v=x, step=1)
    threading.Event().wait()  # here


@pytest.mark.e2e
def test_running_trials_show_their_line_and_processes_their_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = threading.Event()
    handle = lagom(
        wait,
        {"x": [1]},
        optimizer="grid",
        direction="max",
        workers=1,
        engine="local",
        name="digits",
        directory=tmp_path,
        progress=False,
        block=False,
        callbacks=[lambda event: measured.set() if isinstance(event, Measured) else None],
    )
    try:
        assert measured.wait(120)
        shown = ""
        while "# here" not in shown:  # it may not have returned from the report
            assert main(["stacks", str(tmp_path / "digits")]) in (0, None)
            shown = capsys.readouterr().out
        from_handle = handle.stacks()
        titles, names = [], []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                titles += process.cmdline()[:1]
                names.append(process.name())
    finally:
        handle.stop()
        handle.result()
    for text in (shown, from_handle):
        assert "trial 0, worker 0, process " in text
        assert "in wait (threading.Event().wait()  # here)" in text
    assert handle.stacks() == ""
    assert {"maggy-like worker 0 of digits", "maggy-like trial 0, worker 0 of digits"} <= set(titles)
    assert {"maggy worker 0", "maggy forks", "maggy trial 0"} <= set(names)
    assert main(["stacks", str(tmp_path / "digits")]) in (0, None)
    assert capsys.readouterr().out == "no trial of 'digits' runs on this machine\n"
