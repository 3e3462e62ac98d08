"""A network of one's own, for tests that cut it."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
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
