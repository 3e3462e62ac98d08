"""Fixtures of several rooms: a network of its own, an object store, scripts with one session on a cluster."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from report_pages import chromium
from script_process import ScriptProcess

from maggy_like.storage.journal import object_store as journal_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from maggy_like import StandaloneCluster


@pytest.fixture(autouse=True, scope="session")
def claims_settle_at_once() -> None:
    """No test has two drivers that claim the same run by chance: races are forced, step by step."""
    journal_store.SETTLE = 0.01


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
    pytest.importorskip("s3fs", reason="needs the extra 'test'")
    from benchmarks.object_store import object_store

    with object_store() as environment:
        yield environment


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for all tests of a file."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if (path := chromium()) is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def cluster_process(standalone_cluster: StandaloneCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Runs scripts that have one session on ``standalone_cluster``; see :func:`cluster_script`."""
    process = ScriptProcess(tmp_path_factory.mktemp("cluster"))
    yield process
    process.close()


@pytest.fixture
def cluster_script(cluster_process: ScriptProcess, standalone_cluster: StandaloneCluster, tmp_path: Path) -> Any:
    """Run Python code in a process that has its session on ``standalone_cluster``: all such code has the same one.

    ``cluster_script(code, *args)`` returns a ``CompletedProcess``, as ``run_script`` does. The code finds the master's
    URL and the session's settings in ``sys.argv[1:3]``, and must not stop the session.
    """

    def run(code: str, *args: object) -> subprocess.CompletedProcess[str]:
        where = standalone_cluster.master_url, standalone_cluster.conf
        return cluster_process.run(code, *where, *args, directory=tmp_path)

    return run


@pytest.fixture
def free_cluster(cluster_process: ScriptProcess, standalone_cluster: StandaloneCluster) -> StandaloneCluster:
    """``standalone_cluster`` with all its cores free, for a session of one's own."""
    cluster_process.close()
    return standalone_cluster
