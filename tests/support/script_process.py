"""A process that runs scripts one after the other, so that all of them have one Spark session."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]


class ScriptProcess:
    """Starts with the first script, and again after a script that failed.

    Args:
        directory: For what the scripts print, those of the JVM among them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._orders = self._answers = -1
        self._read = {"out": 0, "err": 0}

    def run(self, code: str, *args: object, directory: Path, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Run a script as ``__main__`` in the working directory ``directory``; it must leave nothing under way."""
        script = directory / "script.py"
        script.write_text(code)
        self._start()
        order = {"script": str(script), "args": [*map(str, args)], "directory": str(directory)}
        os.write(self._orders, json.dumps(order).encode() + b"\n")
        answered, _, _ = select.select([self._answers], [], [], timeout)
        status = os.read(self._answers, 100).decode() if answered else ""
        out, err = self._written("out"), self._written("err")
        if status.strip() != "0":
            self.close()
            err += "" if answered else f"\nthe script was not done after {timeout} s"
        return subprocess.CompletedProcess([str(script)], int(status or -1), out, err)

    def close(self) -> None:
        """End the process and all of its session; the next script starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        os.close(self._orders)  # it stops its session then, which gives the executors back
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(self._answers)

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        theirs_in, self._orders = os.pipe()
        self._answers, theirs_out = os.pipe()
        path = os.pathsep.join([str(SUPPORT), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        with open(self._directory / "out", "ab") as out, open(self._directory / "err", "ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs_in), str(theirs_out)],
                cwd=self._directory,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)

    def _written(self, name: str) -> str:
        """What was written since the last script."""
        data = (self._directory / name).read_bytes()
        new, self._read[name] = data[self._read[name] :], len(data)
        return new.decode(errors="replace")


def serve(orders: int, answers: int) -> None:
    """Run scripts until there are no more."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (orders, answers):
        os.set_inheritable(descriptor, False)
    with os.fdopen(orders) as lines:
        for line in lines:
            order = json.loads(line)
            os.chdir(order["directory"])
            sys.argv = [order["script"], *order["args"]]
            status = 0
            try:
                runpy.run_path(order["script"], run_name="__main__")
            except BaseException:
                traceback.print_exc()
                status = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(answers, b"%d\n" % status)
    from maggy_like.spark.session import active_session

    with contextlib.suppress(Exception):  # of a session whose JVM a script has killed
        if (session := active_session()) is not None:
            session.stop()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
