"""Advice on an error of a trial that its function does not explain: what a trial lacks, and what to do about it."""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence

from maggy_like.processes.imports import is_installation, module_path
from maggy_like.processes.system import TOO_LITTLE_MEMORY, address_space, too_small
from maggy_like.protocol.task import DriverProcess
from maggy_like.protocol.values import text_of

MAX_SHOWN = 6
"""Maximum number of directories of a search path in a message, in addition to those of installed packages."""

_SPARKS_OWN = re.compile(r"/(pyspark\.zip|py4j-[^/]*\.zip|spark-core[^/]*\.jar)$")


def advice_on(error: BaseException, driver: DriverProcess | None, mirrored: Mapping[str, str] | None = None) -> str:
    """Return text to append to the message of an error; empty if it is not about what a trial lacks.

    The error was raised on a worker. ``driver`` is None if the driver's process is on this machine and interpreter.
    ``mirrored`` is the directory whose names the trial's working directory has, by its path.
    """
    if (limit := address_space()) is not None and _is_of_memory(error):
        return f"; {here()} may have {limit >> 20} MB of address space, {too_small()}"
    if not isinstance(error, ImportError):
        return _lacks(error, mirrored or {})
    is_missing = isinstance(error, ModuleNotFoundError) and bool(error.name)
    if driver is None:
        return f"; {sys.executable} has no such module; install its package" if is_missing else ""
    found = f"; {here()} looks for modules in {shown_path(module_path())}"
    return f"{found}; {_remedy(error.name or '', driver)}" if is_missing else found


def _lacks(error: BaseException, mirrored: Mapping[str, str]) -> str:
    """Return advice on an error because a trial has no terminal, no input, no pruner or another working directory."""
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str) and not os.path.isabs(error.filename):
        try:
            start = repr(mirrored.get(place := os.getcwd(), place))
        except FileNotFoundError:
            start = "the working directory, which was removed,"
        where = f"{start} on {socket.gethostname()}"
        return f"; relative paths start at {where}, so check the name, or pass an absolute path"
    if isinstance(error, EOFError) and text_of(error) == "EOF when reading a line":  # of input()
        return "; a trial has no standard input, so make what it asks for a parameter of the function"
    if type(error).__name__ == "TrialPruned":  # of Optuna
        return (
            "; leave it out, since report() ends a trial that is to stop, or return: the trial keeps its reports, and "
            "without any it can return float('nan'), the worst value"
        )
    debugger = sys.modules.get("bdb")
    if debugger is not None and isinstance(error, debugger.BdbQuit):
        return "; a debugger has no terminal in a trial, so use engine='inline'"
    return ""


def here() -> str:
    """Return this interpreter and machine."""
    return f"{sys.executable} on {socket.gethostname()}"


def shown_path(path: Sequence[str]) -> str:
    """Return the directories of a search path without Python's and Spark's, whose modules are never missing."""
    packages = [entry for entry in path if entry.rstrip("/").endswith("-packages")]
    others = [entry or "." for entry in path if not is_installation(entry) and not _SPARKS_OWN.search(entry)]
    rest = len(others) - MAX_SHOWN
    more = [f"{rest} more"] if rest > 0 else []
    return ", ".join([*others[:MAX_SHOWN], *more, *packages]) or "no directory but Python's own"


def _remedy(name: str, driver: DriverProcess) -> str:
    top = name.partition(".")[0]
    if (file := driver.own_modules.get(top)) is not None:
        sent = file if file.endswith(".py") else f"a zip of {file}"
        return (
            f"on the driver's machine it is {file}, which the worker lacks; send it with spark-submit --py-files, "
            f"spark.sparkContext.addPyFile({sent!r}) or, on Spark Connect, spark.addArtifact({sent!r}, pyfile=True)"
        )
    other = ""
    if sys.executable != driver.executable:
        other = f", or, if the driver's Python ({driver.executable}) has it, set PYSPARK_PYTHON to a Python like that"
    return (
        f"install its package on every node ({sys.executable} -m pip install ...), or send an "
        f"environment with spark.archives (docs/shipping.md){other}"
    )


def _is_of_memory(error: BaseException) -> bool:
    words = f"{type(error).__name__}: {text_of(error)}".lower()
    frames = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    is_import = isinstance(error, ImportError) or any(name.startswith("<frozen importlib") for name in frames)
    return is_import and any(sign in words for sign in TOO_LITTLE_MEMORY)
