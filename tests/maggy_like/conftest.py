"""A network of one's own, for tests that cut it; an object store: moto's server, a process of its own."""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def namespace() -> Iterator[tuple[str, str, str]]:
    """A network namespace behind a veth pair; gives its name, our end of the pair, and the address of our end."""
    name, net = f"maggy{secrets.token_hex(3)}", random.Random(os.getpid()).randrange(1, 250)
    here, there = f"{name[:9]}h", f"{name[:9]}t"
    if os.geteuid() != 0 or shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name]).returncode:
        pytest.skip("needs root and `ip netns`")
    try:
        for command in (
            f"ip link add {here} type veth peer name {there} netns {name}",
            f"ip addr add 10.213.{net}.1/24 dev {here}",
            f"ip link set {here} up",
            f"ip -n {name} addr add 10.213.{net}.2/24 dev {there}",
            f"ip -n {name} link set {there} up",
        ):
            subprocess.run(command.split(), check=True)
        yield name, here, f"10.213.{net}.1"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)  # takes the pair with it


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
