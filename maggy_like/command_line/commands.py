"""What each command of ``maggy-like`` does; a function's name is the command's, and ``_command``."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

from maggy_like.api.list_runs import list_runs
from maggy_like.api.load_run import load_run
from maggy_like.display.text import clean, config_text, number
from maggy_like.errors import UserError
from maggy_like.results.result import Result
from maggy_like.results.text_table import aligned
from optimizers.core.trial import Trial, TrialState

_LONGEST = 80  # characters of a configuration


def list_command(given: Namespace) -> None:
    """Print the runs in a folder."""
    print(list_runs(given.directory))


def show_command(given: Namespace) -> None:
    """Print what a run found, and its best trials or its story."""
    result = load_run(given.run)
    print(result)
    if given.story:
        print("", *result.story(), sep="\n")
        return
    rows = [_cells(trial) for trial in _ranked(result)[: given.trials]]
    if rows:
        print("", aligned(("trial", "state", result.objective, "step", "configuration"), rows), sep="\n")


def tail_command(given: Namespace) -> None:
    """Print the newest lines of a trial, or of those that run."""
    result = load_run(given.run)
    known = [*result.trials, *([] if result.training is None else [result.training.trial])]
    if given.trial is not None:
        if given.trial not in {trial.id for trial in known}:
            raise UserError(f"there is no trial {given.trial} among the {len(known)} of this run")
        _print_tail(result, given.trial, given)
        return
    begun = [trial for trial in known if trial.attempt]
    running = [trial for trial in begun if trial.state is TrialState.RUNNING]
    chosen = running or begun[-1:]
    for trial in chosen:
        print(f"==> trial {trial.id} ({trial.state.value}) <==")
        _print_tail(result, trial.id, given)
    if not chosen:
        print("no trial has begun")


def watch_command(given: Namespace) -> None:
    """Show a run until it ends; what it found then."""
    print(load_run(given.run).watch(progress="plain" if given.plain else True))


def export_command(given: Namespace) -> None:
    """Write the trials or the measurements of a run."""
    result = load_run(given.run)
    if given.format == "optuna":
        if given.curves:
            raise UserError("--format optuna has trials and their curves together; leave --curves out")
        storage = given.to or f"sqlite:///{result.name}.db"
        study = result.to_optuna(storage if "://" in storage else f"sqlite:///{storage}")
        print(f"{len(study.trials)} trials are in the study {study.study_name!r} of {storage}")
        return
    target = Path(given.to or f"{result.name}{'-curves' * given.curves}.{given.format}")
    if target.exists():
        raise UserError(f"there is a file {str(target)!r} already; remove it, or pass another --to")
    table = result.curves() if given.curves else result.to_pandas()
    try:
        if given.format == "csv":
            table.to_csv(target, index=False)
        else:
            table.to_parquet(target, index=False)
    except (OSError, ImportError) as error:
        raise UserError(f"{str(target)!r} cannot be written ({error}); pass another --to or --format") from error
    print(f"{len(table)} {'measurements' if given.curves else 'trials'} are in {target}")


def _print_tail(result: Result, trial: int, given: Namespace) -> None:
    for line in result.log(trial, given.rank).splitlines()[-given.lines :]:
        print(clean(line))


def _ranked(result: Result) -> list[Trial]:
    """The Pareto set first where there is one, else the best; those without a value last."""
    chosen = {trial.id for trial in result.pareto}
    sign = 1.0 if result.direction == "min" else -1.0

    def key(trial: Trial) -> tuple[bool, float, int]:
        value = math.inf if trial.value is None or math.isnan(trial.value) else sign * trial.value
        return (trial.id not in chosen, value, trial.id)

    return sorted(result.trials, key=key)


def _cells(trial: Trial) -> list[str]:
    config = config_text(trial.config)
    config = config if len(config) <= _LONGEST else f"{config[: _LONGEST - 1]}…"
    step = "-" if trial.reported is None else str(trial.reported)
    return [str(trial.id), trial.state.value, number(trial.value), step, config]
