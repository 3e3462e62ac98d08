"""An object store: moto's server, a process of its own on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def object_store() -> Iterator[dict[str, str]]:
    """The environment in which ``s3://`` names the store; its bucket is ``runs``."""
    pytest.importorskip("moto.server", reason="needs the extra 'test'")
    s3fs = pytest.importorskip("s3fs", reason="needs the extra 'test'")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))
            # It logs each request: a pipe that nobody reads would fill, and the server would stand still.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            environment = {
                "AWS_ENDPOINT_URL": found[0],
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_DEFAULT_REGION": "eu-west-1",
            }
            s3fs.S3FileSystem(
                key="testing", secret="testing", endpoint_url=found[0], client_kwargs={"region_name": "eu-west-1"}
            ).mkdir("runs")
            yield environment
        finally:
            server.kill()
