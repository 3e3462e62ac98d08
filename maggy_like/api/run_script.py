"""``run_script``: run a script that was written for torchrun on several workers together."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from maggy_like.api.run import run
from maggy_like.errors import ConfigError

if TYPE_CHECKING:
    from maggy_like.driver.callbacks import Callback
    from maggy_like.driver.failure_policy import FailurePolicy
    from maggy_like.engines.base import Engine


def run_script(
    path: str | PathLike[str],
    args: Sequence[object] = (),
    *,
    workers: int | None = None,
    engine: str | Engine = "auto",
    failures: FailurePolicy | None = None,
    name: str | None = None,
    directory: str | Path = "maggy_runs",
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | str = True,
) -> None:
    """Run a script on several workers together, unchanged, as ``torchrun`` runs it on one machine.

    Each worker runs it as ``__main__``, with its arguments in ``sys.argv``, its folder first on ``sys.path``, and
    torchrun's environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``, ...). The output
    of all ranks is shown live, with their rank.

    Workers that see the script's folder run it there. Other workers receive the script with the modules and packages
    that it imports from its folder, and none of its other files (see ``docs/shipping.md``). The script writes files on
    the machines of the ranks, so use paths or URLs that all machines see.

    Args:
        path: Path of the script.
        args: Arguments of the script. They are converted to text.
        workers: Number of workers. Default all slots of the engine.
        engine: Engine, as for :func:`maggy_like.run`, except ``"inline"``, which has no ranks.
        failures: Retries and time limits. A retried script starts from its beginning, and continues from its own
            checkpoint if it looks for one. ``FailurePolicy(max_attempts=1)`` retries nothing.
        name: Name of the run. Default a name made of the script's name and the time.
        directory: Path or URL of the folder of all runs.
        resume: If True, run the script of the run called ``name`` again, unless it had returned. Default False.
        overwrite: If True, delete an earlier run called ``name`` first. Default False.
        callbacks: Functions of one event, and trackers.
        progress: If True, show a live display.

    Raises:
        UserError: An argument is wrong, or the script is missing or not Python. This is raised before anything starts.
        EngineError: The engine cannot provide the workers.
        TrainingError: The script raised, or called ``sys.exit`` with a value other than 0 or None. The error has the
            traceback of the rank that failed first.
        KeyboardInterrupt: After Ctrl-C or SIGTERM, once all workers have left.

    Example:
        >>> run_script("train.py", ["--epochs", 3], workers=2)
    """
    from maggy_like.train_function.script import read_script

    script = read_script(path, args)
    if getattr(engine, "name", engine) == "inline":
        raise ConfigError("engine='inline' has no ranks for a script to be; use engine='local' with workers=1")
    run(
        script,
        workers=workers,
        engine=engine,
        failures=failures,
        name=name,
        directory=directory,
        resume=resume,
        overwrite=overwrite,
        callbacks=callbacks,
        progress=progress,
    )
