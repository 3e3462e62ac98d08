"""The journal of a run: begun, or taken up where it ends."""

from __future__ import annotations

import time

from maggy_like.config import Settings
from maggy_like.errors import ConfigError, JournalError
from maggy_like.experiment import StateMachine
from maggy_like.journal import Journal, RunHeader, read_journal, to_records
from optimizers.asha import ASHA
from optimizers.population import PBT


def open_journal(settings: Settings, experiment: StateMachine) -> Journal:
    """A new run's journal, or an old one replayed into the experiment.

    Raises:
        ConfigError: The name is taken, the folder cannot be written, or the run was another search.
        JournalError: There is nothing to resume, or its journal is damaged or in use.
    """
    path = settings.directory / "journal.jsonl"
    if path.exists() and not settings.resume:
        raise ConfigError(
            f"there is a run named {settings.name!r} in {settings.directory.parent} already; "
            "pass resume=True to go on with it, or another name"
        )
    if settings.resume and not path.exists():
        raise JournalError(f"there is no run named {settings.name!r} in {settings.directory.parent} to resume")
    try:
        settings.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"directory={str(settings.directory.parent)!r} cannot be written ({error}); pass another"
        ) from error
    header = _header(settings)
    journal = Journal(path)
    try:
        if settings.resume:
            known, events, size = read_journal(path)
            _check_same(known, header)
            journal.repair(size)
            experiment.replay(events)
        else:
            journal.begin(header)
    except BaseException:
        journal.close()
        raise
    return journal


def _header(settings: Settings) -> RunHeader:
    match settings.optimizer:
        case ASHA(eta=eta, mode=mode, brackets=brackets) as asha:
            rungs = "-".join(map(str, asha.levels(settings.max_budget)))
            options = f"(eta={eta}, mode={mode}, rungs={rungs}, brackets={brackets})"
        case PBT(population=population, interval=interval, quantile=quantile):
            options = f"(population={population}, interval={interval}, quantile={quantile})"
        case _:
            options = ""
    return RunHeader(
        version=1,
        name=settings.name,
        created=time.time(),
        space=settings.space.to_json(),
        optimizer=f"{settings.optimizer_name}{options}",
        direction=", ".join(settings.directions),
        metric=", ".join(settings.metrics) or None,
        seed=settings.seed,
        max_budget=settings.max_budget,
        constrained=settings.space.has_constraint,
        earlier=to_records(settings.earlier),
    )


def _check_same(known: RunHeader, now: RunHeader) -> None:
    """Raise if a run is to be resumed as another search."""
    for field in ("space", "optimizer", "direction", "metric", "seed", "max_budget", "constrained"):
        before, given = getattr(known, field), getattr(now, field)
        if before != given:
            raise ConfigError(
                f"the run {known.name!r} was started with {field}={before!r}, not {given!r}; "
                "resume it with the same, or choose another name"
            )
