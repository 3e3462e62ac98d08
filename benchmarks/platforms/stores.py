"""Runs that are kept in an object store and nowhere else; the extra ``test`` has its server and ``s3fs``."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import fsspec

from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import search, wrong
from benchmarks.platforms.twice import session, twice
from maggy_like import load_run

URL = "s3://runs"


@contextlib.contextmanager
def object_store() -> Iterator[None]:
    """A server of S3's protocol, a process of its own; this process and those that it starts find it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))
            # It logs each request: a pipe that nobody reads would fill, and the server would stand still.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            os.environ["AWS_ENDPOINT_URL"] = found[0]
            os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "testing"
            os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
            fsspec.filesystem("s3").mkdir("runs")
            yield
        finally:
            server.kill()


def in_a_store() -> Outcome:
    with object_store(), session("local[2]") as spark:
        outcome = twice(spark, URL)
        found = search(URL, name="again")
        outcome.wrong += [f"read from the store: {what}" for what in wrong(load_run(f"{URL}/again"))]
        if found.result.load_best()["step"] != found.result.best_step:
            outcome.wrong.append("the best state is not the one of the best step")
        return outcome


SETTINGS = {"directory=URL": in_a_store}
