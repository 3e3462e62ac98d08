"""``run`` and ``run_script``: run a function or a script on several workers together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.api.options import ARGUMENT_OF_TRAIN_FN, OTHER_SPELLINGS_OF_RUN, RunOptions, takes
from maggy_like.argument_checks import whole
from maggy_like.errors import ConfigError
from maggy_like.processes.garbage import no_collections
from optimizers.checks import explains_arguments

if TYPE_CHECKING:
    from maggy_like.driver.followers import Callback
    from maggy_like.driver.settings import FailurePolicy
    from maggy_like.engines.base import Engine


@dataclass(frozen=True)
class _OfFunction:
    """The options that only a function on several workers has."""

    train_fn: Callable[..., Any]
    config: Mapping[str, Any] | None = None
    _: KW_ONLY
    budget: int | None = None


@dataclass(frozen=True)
class FunctionOptions(RunOptions, _OfFunction):
    """The options of a function that runs on several workers. :func:`run` describes each one."""


@takes(FunctionOptions, OTHER_SPELLINGS_OF_RUN, ARGUMENT_OF_TRAIN_FN)
def run(options: FunctionOptions) -> Any:
    """Run a function on several workers together, and return what it returned on rank 0.

    Each worker has torchrun's environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ...). Code for
    torchrun, Accelerate or Fabric therefore runs unchanged, and so does a training function of
    :func:`maggy_like.lagom`. The output of all ranks is shown live, with their rank. If a rank fails, the attempt ends
    on all ranks, and the next attempt continues from the last checkpoint.

    Args:
        train_fn: The function. Its parameters are filled by name, as for :func:`maggy_like.lagom`: those of
            ``config``, and ``reporter``, ``config`` or ``budget``. It may return anything that can be pickled.
        config: Arguments by name: numbers, text, booleans, None, and tuples or lists of them. For other values, use
            :func:`functools.partial`.
        workers: Number of workers. Default all slots of the engine.
        budget: Steps to train for, if ``train_fn`` uses ``reporter.budget``.
        engine: Engine, as for :func:`maggy_like.lagom`.
        failures: Retries, time limits, and how many workers are enough (:class:`~maggy_like.FailurePolicy`).
        name: Name of the run. Default a name made of the function's name and the time.
        directory: Path or URL of the directory of all runs.
        store: Place of the checkpoints and the returned value, if they should not be in the run's directory.
        resume: If True, continue the run called ``name``. Default False.
        overwrite: If True, first delete an earlier run called ``name``. A run that is active raises an error. Default
            False.
        callbacks: Functions of one event, and trackers, as for :func:`maggy_like.lagom`.
        progress: If True, show a live display.
        block: If True, wait for the end. If False, run the function in the background and return a handle.

    Returns:
        The value that the function returned on rank 0. With ``block=False`` a :class:`~maggy_like.RunHandle`.

    Raises:
        UserError: An argument or the function is wrong. This is raised before anything starts.
        EngineError: The engine cannot provide the workers.
        TrainingError: The function failed. The error has the traceback of the rank that failed first.
        KeyboardInterrupt: After Ctrl-C or SIGTERM, once all workers have ended.

    Example:
        >>> def hello():
        ...     torch.distributed.init_process_group()
        ...     ranks = torch.ones(1)
        ...     torch.distributed.all_reduce(ranks)
        ...     return ranks.item()
        >>> run(hello, workers=2)
        2.0
    """
    with no_collections():  # nearly all that is imported and made here stays
        # Loaded when a run starts, so that importing run stays quick.
        from maggy_like.api.execution import execute_and_return, save_returned, start
        from maggy_like.api.run_settings import check_config, check_files, check_size, make_spec
        from maggy_like.driver.settings import SearchSettings, Settings, TrainingSettings, read_policy
        from maggy_like.protocol.messages import UNBOUNDED
        from maggy_like.train_function.code import name_of, uses_budget
        from maggy_like.train_function.modules import modules_of
        from maggy_like.train_function.parameters import check_parameters
        from optimizers.samplers.non_adaptive import Enumeration
        from optimizers.space.domains import Constant
        from optimizers.space.search_space import SearchSpace

        train_fn, budget = options.train_fn, options.budget
        given = check_config(options.config)
        space = SearchSpace({key: Constant(value) for key, value in given.items()})
        check_parameters(train_fn, space, source="config")
        if budget is None and uses_budget(train_fn):
            raise ConfigError(f"budget must be given, since {name_of(train_fn)} uses its budget; use budget=STEPS")
        steps = UNBOUNDED if budget is None else whole("budget", budget, least=1)
        policy = read_policy(options.failures)
        files = check_files(options)
        settings = Settings(
            search=SearchSettings(space, Enumeration(), "training", max_budget=steps, n_trials=0),
            files=files,
            size=check_size(options.workers, min_workers=policy.min_workers),
            failures=policy,
            training=TrainingSettings(steps, given),
        )
        spec = make_spec(
            options,
            settings,
            modules_of(train_fn, multi_worker=True),
            save_returned=partial(save_returned, files.paths.store),
        )
    return start(options, spec, execute_and_return)


@explains_arguments(OTHER_SPELLINGS_OF_RUN)
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

    Each worker runs it as ``__main__``, with its arguments in ``sys.argv``, its directory first on ``sys.path``, and
    torchrun's environment (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``, ``MASTER_PORT``, ...). The output
    of all ranks is shown live, with their rank.

    Workers that see the script's directory run it there. Other workers receive the script with the modules and packages
    that it imports from its directory, and none of its other files (see ``docs/shipping.md``). The script writes files
    on the machines of the ranks, so use paths or URLs that all machines see.

    Args:
        path: Path of the script.
        args: Arguments of the script. They are converted to text.
        workers: Number of workers. Default all slots of the engine.
        engine: Engine, as for :func:`maggy_like.run`, except ``"inline"``, which does not run ranks.
        failures: Retries and time limits. A retried script starts from its beginning, and continues from its own
            checkpoint if it has one. ``FailurePolicy(max_attempts=1)`` retries nothing.
        name: Name of the run. Default a name made of the script's name and the time.
        directory: Path or URL of the directory of all runs.
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
        raise ConfigError("engine='inline' does not run ranks, which a script needs; use engine='local' with workers=1")
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
