"""What a new run learns from earlier ones (``warm_start``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from maggy_like.argument_checks import listed
from maggy_like.errors import ConfigError, MaggyError
from maggy_like.results.data import check_created
from maggy_like.results.result import Result
from maggy_like.storage.journal import (
    Contents,
    Earlier,
    RunHeader,
    backend_of,
    from_records,
    read_header,
    read_journal,
    reading,
)
from optimizers.checks import short
from optimizers.core.base import Grant, History, Observation, Optimizer, Problem, Scheduler
from optimizers.core.direction import Direction
from optimizers.core.objectives import read_directions
from optimizers.core.study import Study
from optimizers.core.trial import TrialState
from optimizers.errors import SearchSpaceError
from optimizers.schedulers.successive_halving import rung_levels
from optimizers.space import Config
from optimizers.space.domains import Constant
from optimizers.space.search_space import SearchSpace

_ETA = 3  # ratio of the steps at which the curves of earlier trials are read


def gather(
    warm_start: Sequence[Result | str | Path],
    space: SearchSpace,
    metrics: Sequence[str],
    directions: tuple[Direction | None, ...],
) -> tuple[Earlier, str, tuple[Direction | None, ...]]:
    """Collect the observations of earlier runs that a new run can use.

    From each trial its value is taken, and its results at ``max_budget`` divided by powers of 3, so that stopped trials
    can be compared with others. Its configuration must fit into the new space. Parameters that are not in the new space
    are dropped. Constants have their new value, since they describe what is trained (such as a data set) rather than
    what is searched.

    ``metrics`` is empty and a direction is None while they are not known. Also return a line for the user about the
    number of trials, and the directions.
    """
    from maggy_like.driver.stream import replay

    earlier, notes = [], []
    for run in listed("warm_start", warm_start, "runs"):
        name, contents = _read(run)
        study = replay(contents, _Replayed()).study
        before = study.objectives.directions
        if directions == (None,) and len(before) == 1:
            directions = before  # those of the first earlier run
        _check_objectives(name, contents.header, study, metrics, directions)
        observations, note = _adopt(name, study, space)
        earlier.append(observations)
        notes.append(f"{note}, though {contents.damage[0]}" if contents.damage else note)
    return tuple(earlier), f"warm start: {'; '.join(notes)}" if notes else "", directions


def recorded(
    journal: str, warm_start: Sequence[Result | str | Path], space: SearchSpace
) -> tuple[Earlier, tuple[Direction | None, ...], int | None]:
    """Read from a run's journal what it learned from earlier runs when it began, its directions, and ``began_with``.

    The runs in ``warm_start`` must be the same as then. They may have continued, or be deleted.
    """
    backend = backend_of(journal)
    with reading(backend):
        exists = backend.exists()
    if not exists:
        return (), (), None  # open_journal reports it
    header = read_header(backend)
    if warm_start and not header.earlier:
        raise ConfigError(f"the run {header.name!r} was started without warm_start; leave it out")
    earlier = from_records(header.earlier)
    if warm_start and not _is_same(earlier, warm_start, space):
        raise ConfigError(
            f"warm_start must have the runs that {header.name!r} was started with, got "
            f"{short([_directory(run) for run in warm_start])}; leave it out"
        )
    return earlier, read_directions(header.directions), header.began_with


def _is_same(earlier: Earlier, warm_start: Sequence[Result | str | Path], space: SearchSpace) -> bool:
    """Return whether the runs are those of the observations, as far as they still exist."""
    for run in listed("warm_start", warm_start, "runs"):
        _check_type(run)
    try:
        given = [_trials(run) for run in gather(warm_start, space, (), (None,))[0]]
    except MaggyError:
        return True
    known = [_trials(run) for run in earlier]
    return len(given) == len(known) and all(any(run.items() <= now.items() for now in given) for run in known)


def _trials(run: tuple[Observation, ...]) -> dict[int, str]:
    return {seen.trial: repr(seen.config) for seen in run}


def _read(run: Result | str | Path) -> tuple[str, Contents]:
    """Read the name of a run and the contents of its journal."""
    from maggy_like.results.runs import find_run

    _check_type(run)
    try:
        contents = read_journal(find_run(_directory(run)))
    except ConfigError as error:
        raise ConfigError(f"warm_start: {error}") from error.__cause__
    if isinstance(run, Result):
        check_created(run, contents.header.created)
    return contents.header.name, contents


def _directory(run: Result | str | Path) -> str:
    return str(run.directory if isinstance(run, Result) else run)


def _check_type(run: Result | str | Path) -> None:
    if not isinstance(run, Result | str | Path):
        raise ConfigError(
            f"warm_start must contain results or directories of runs, got {short(run)}; use [result], or "
            "points_to_evaluate=[...] to try the best configurations of another library's study first"
        )


class _Rungs(Scheduler):
    """Observes all trials at the same steps."""

    def __init__(self, max_budget: int) -> None:
        self._grant = Grant(max_budget, tuple(rung_levels(max_budget, 1, _ETA)[:-1]))

    def grant(self, trial: int) -> Grant:
        return self._grant


class _Replayed(Optimizer):
    multi_objective = True

    def ask(self, index: int, history: History) -> None:
        return None

    def scheduler(self, problem: Problem) -> Scheduler:
        return _Rungs(problem.max_budget)


def _check_objectives(
    name: str, header: RunHeader, study: Study, metrics: Sequence[str], directions: Sequence[Direction | None]
) -> None:
    before = header.metrics or sorted({trial.objective for trial in study.trials if trial.objective is not None})
    for what, known, given in (("direction", study.objectives.directions, directions), ("metric", before, metrics)):
        if known and given and list(known) != list(given):
            raise ConfigError(
                f"warm_start: the run {name!r} has {what}={', '.join(map(str, known))!r}, and this one has "
                f"{', '.join(map(str, given))!r}; leave warm_start out"
            )


def _adopt(name: str, study: Study, space: SearchSpace) -> tuple[tuple[Observation, ...], str]:
    """Return a run's observations in the new space, and a line about the number of trials."""
    found: dict[tuple[int, int], Observation] = {}  # the newest of each trial and step
    for update in study.take_updates():
        if isinstance(update, Observation):
            found[update.trial, update.step] = msgspec.structs.replace(update, ended=True, paused=False)
    last = {seen.trial: seen.step for seen in found.values()}
    for number, step in last.items():
        trial, seen = study.trials[number], found[number, step]
        if not seen.losses and trial.state is not TrialState.FAILED:
            found[number, step] = msgspec.structs.replace(seen, loss=study.loss(trial.value))
    configs: dict[int, Config] = {}
    reason = ""
    for number in last:
        try:
            configs[number] = _translated(study.trials[number].config, study.problem.space, space)
        except SearchSpaceError as error:
            reason = reason or str(error)
    n_trials = len(last)
    if not n_trials:
        raise ConfigError(f"warm_start: the run {name!r} has no results; leave it out")
    if not configs:
        known = study.problem.space.domains
        why, remedy = reason.partition(";")[0], "let the spaces overlap"
        if new := [parameter for parameter in space.domains if parameter not in known]:
            why, remedy = f"they have {', '.join(known)}, and no {', '.join(new)}", "leave warm_start out"
        raise ConfigError(f"warm_start: none of the {n_trials} trials of {name!r} can be used: {why}; {remedy}")
    valid = (seen for seen in found.values() if seen.trial in configs)
    observations = tuple(msgspec.structs.replace(seen, config=configs[seen.trial]) for seen in valid)
    note = f"{len(configs)} of {n_trials} trials of {name!r} can be used"
    return observations, f"{note} (the first that is not: {reason})" if reason else note


def _translated(config: Mapping[str, Any], old: SearchSpace, new: SearchSpace) -> Config:
    """Translate a configuration to the space ``new``. Raise SearchSpaceError if it does not fit."""
    made: Config = {}
    for name in new.parents_first:
        domain = new.domains[name]
        if not new.is_active(name, made):
            continue
        if isinstance(domain, Constant) and isinstance(old.domains.get(name, domain), Constant):
            made[name] = domain.value
        elif name in config:
            made[name] = config[name]
    return new.validate(made)
