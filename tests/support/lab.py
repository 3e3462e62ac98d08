"""A JupyterLab of its own: its settings, its runtime files and its kernels are in one directory, and end with it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
PATIENCE = 200.0
"""Seconds that anything may take on a machine that does much else. A few are enough on an idle one."""

SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},  # else what is scrolled away is not in the page
}

CELL = ".jp-OutputArea-output .maggy"
KERNEL = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
CONNECTED = f"() => {KERNEL}?.connectionStatus === 'connected'"
RUN_ALL = "void window.jupyterapp.commands.execute('notebook:run-all-cells')"


@contextlib.contextmanager
def jupyterlab(directory: Path, files: Path) -> Iterator[str]:
    """Run JupyterLab in a directory, and yield the address of the directory in it.

    Args:
        directory: The directory with the notebooks.
        files: A directory for settings and runtime files.
    """
    for name, values in SETTINGS.items():
        settings = files / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps(values))
    places = {
        name: str(files / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    }
    environment = os.environ | places | {"IPYTHONDIR": str(files / "ipython"), "PYTHONPATH": str(ROOT)}
    environment["JUPYTERLAB_SETTINGS_DIR"] = str(files / "settings")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--LabApp.extension_manager=readonly"]
    command += ["--LabApp.expose_app_in_browser=True"]
    server = subprocess.Popen(command, cwd=directory, env=environment, stderr=subprocess.PIPE, text=True)
    ready, said = threading.Event(), list[str]()

    def read() -> None:
        assert server.stderr is not None
        for line in server.stderr:
            said.append(line)
            if f"http://127.0.0.1:{port}/lab" in line:
                ready.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(PATIENCE), "".join(said)
        yield f"http://127.0.0.1:{port}/lab/tree"
    finally:
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        server.terminate()
        _, left = psutil.wait_procs(family, timeout=2)  # the server itself takes more than 20 s
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()
        reader.join(10)
        if server.stderr is not None:
            server.stderr.close()
