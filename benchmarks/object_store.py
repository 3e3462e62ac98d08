"""An object store on this machine: moto's server of S3's protocol, a process of its own (extra ``test``)."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import fsspec

BUCKET = "runs"

URL = f"s3://{BUCKET}"


@contextlib.contextmanager
def object_store() -> Iterator[dict[str, str]]:
    """Run the server; gives the environment in which ``s3://`` names it."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            found = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))
            # It logs each request: a pipe that nobody reads would fill, and the server would stand still.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            region = "eu-west-1"
            options = {"key": "testing", "secret": "testing", "client_kwargs": {"region_name": region}}
            fsspec.filesystem("s3", endpoint_url=found[0], **options).mkdir(BUCKET)
            yield {
                "AWS_ENDPOINT_URL": found[0],
                "AWS_ACCESS_KEY_ID": "testing",
                "AWS_SECRET_ACCESS_KEY": "testing",
                "AWS_DEFAULT_REGION": region,
            }
        finally:
            server.kill()
