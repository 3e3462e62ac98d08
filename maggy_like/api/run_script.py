"""``run_script``: run a script that was written for torchrun on all workers of a gang together."""

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
    """Run a script on all workers of a gang together, unchanged, as ``torchrun`` runs it on one machine.

    Each worker runs it as ``__main__``, with its arguments in ``sys.argv``, its folder first on ``sys.path``, and
    torchrun's environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``, ...). What all
    ranks print appears live, with their rank.

    Workers that see the script's folder run it there. To others the script is sent with the modules and packages that
    it imports from its folder; of its other files they have none (see ``docs/shipping.md``). Files that it writes lie
    where the ranks run: use paths or URLs that all machines see.

    Args:
        path: The script's file.
        args: Its arguments, which become text.
        workers: Size of the gang; by default all slots of the engine.
        engine: As for :func:`maggy_like.run`, and so are the others; ``"inline"`` has no ranks.
        failures: Attempts and time limits. A script whose worker was lost runs again from its beginning, and goes
            on from its own checkpoint if it looks for one; ``FailurePolicy(max_attempts=1)`` for once only.
        name: The run's name; made up if not given.
        directory: Path or URL of the folder of all runs.
        resume: Go on with the run called ``name``: the script begins again, unless it had returned.
        overwrite: If True, delete an earlier run called ``name`` first. Default False.
        callbacks: Functions that take each event, and trackers.
        progress: Show a live display.

    Raises:
        UserError: An argument is wrong, or the script is missing or no Python; this is found before anything starts.
        EngineError: The engine cannot provide the gang.
        TrainingError: The script raised, or called ``sys.exit`` with something else than 0 or None: the rank that was
            the first to fail, and its traceback.
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
