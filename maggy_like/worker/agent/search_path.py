"""Where a worker's processes look for modules: where the worker itself does, then where the driver does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from maggy_like.processes.installation import is_installation, is_standard
from maggy_like.processes.module_path import module_path
from maggy_like.protocol.task import WorkerTask
from maggy_like.protocol.versions import PYTHON


def with_own_path(task: WorkerTask) -> WorkerTask:
    """The task for a worker's child processes: its ``sys_path`` is theirs."""
    if task.driver is None:  # the worker was started with the driver's path
        return task
    drivers = [os.path.join(task.driver.folder, entry) for entry in task.sys_path]
    return msgspec.structs.replace(task, sys_path=worker_path(module_path(), drivers, task.driver.python))


def worker_path(
    own: Sequence[str], drivers: Sequence[str], python: str, exists: Callable[[str], bool] = os.path.exists
) -> tuple[str, ...]:
    """The module search path of a worker's processes.

    What the worker itself has comes first and in its order: what Spark has shipped (``--py-files``), and its own
    packages. Of the driver's folders those are used that exist here, so that a folder that all machines share serves
    without being shipped: those that the driver looks into before its own packages stand before the worker's packages
    too, the others last. A driver on this machine and interpreter has no others, and its order is kept.

    Args:
        own: The ``sys.path`` of the worker; an empty entry is whatever folder it works in.
        drivers: That of the driver, in absolute paths.
        python: The driver's minor version; the folders of another Python are of no use.
        exists: Whether there is such a folder or archive.

    Example:
        >>> worker_path(["/app/deps.zip", "/w/lib/python3.11"], ["/home/me", "/d/lib/python3.11"], PYTHON,
        ...             exists=lambda path: True)
        ('/app/deps.zip', '/home/me', '/w/lib/python3.11')
    """
    # Spark gives relative entries, and a trial may change its working folder.
    mine = list(dict.fromkeys(os.path.abspath(entry) if entry else "" for entry in own))
    if python != PYTHON:
        return tuple(mine)
    first = next((at for at, entry in enumerate(drivers) if is_installation(entry)), len(drivers))
    before, after = _useful(drivers[:first], mine, exists), _useful(drivers[first:], mine, exists)
    middle = next((at for at, entry in enumerate(mine) if is_installation(entry)), len(mine))
    return tuple(dict.fromkeys((*mine[:middle], *before, *mine[middle:], *after)))


def _useful(drivers: Sequence[str], own: Sequence[str], exists: Callable[[str], bool]) -> list[str]:
    """The driver's folders that a worker can use; a standard library is the interpreter's own."""
    return [entry for entry in drivers if entry not in own and not is_standard(entry) and exists(entry)]
