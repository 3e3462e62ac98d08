"""The versions of maggy_like and Python that a process runs, and messages about how a worker's differ."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from maggy_like.version import __version__

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The minor version: packages and functions that are pickled by value are made for one."""

Short = Annotated[str, Meta(max_length=5000)]

_REMEDY = (
    "install the same version on all machines, or send the driver's with spark-submit --py-files (docs/shipping.md)"
)


class Versions(msgspec.Struct, frozen=True):
    """What a process runs.

    Attributes:
        package: The version of maggy_like.
        home: The folder or archive that contains it.
        python: The minor version of Python.
        executable: The interpreter.
    """

    package: Short
    home: Short
    python: Short
    executable: Short


def own_versions() -> Versions:
    """Return the versions of this process."""
    home = os.path.abspath(f"{__file__}/../../..")
    return Versions(__version__, home, PYTHON, sys.executable or "?")


def misfit(worker: Versions, driver: Versions) -> str:
    """Return why a worker's versions do not fit the driver's, and what to do; empty if they fit."""
    if worker.python != driver.python:
        return (
            f"the driver runs Python {driver.python} ({driver.executable}) and the worker Python {worker.python} "
            f"({worker.executable}), which cannot read each other's functions; set PYSPARK_PYTHON to a Python "
            f"{driver.python} that the worker's machine has, or send one with spark.archives (docs/shipping.md)"
        )
    if worker.package != driver.package:
        return (
            f"the driver has maggy_like {driver.package} ({driver.home}) and the worker {worker.package} "
            f"({worker.home}); {_REMEDY}"
        )
    return ""


def foreign_protocol(theirs: Any, protocol: int, driver: Versions) -> str:
    """Return the message about a hello in another version of the protocol.

    Args:
        theirs: The hello as plain data of any form.
        protocol: The driver's version of the protocol.
        driver: What the driver runs.
    """
    said = theirs.get("versions")
    package, home = (said.get("package"), said.get("home")) if isinstance(said, dict) else (None, None)
    has = f"{str(package)[:100]} ({str(home)[:500]})" if package else "an unknown version"
    return (
        f"the driver has maggy_like {driver.package} ({driver.home}) and the worker {has}: they use versions "
        f"{protocol} and {str(theirs.get('version'))[:20]} of the protocol; {_REMEDY}"
    )
