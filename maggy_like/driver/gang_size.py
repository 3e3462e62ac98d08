"""How many workers a run gets, from its settings and its engine."""

from __future__ import annotations

from maggy_like.driver.settings import Settings
from maggy_like.engines.base import Capacity
from maggy_like.errors import EngineError
from maggy_like.extras import require

MOST_UNASKED = 64
"""Workers to which a gang grows at most on a cluster that has no bound, unless somebody asks for more."""


def gang_size(settings: Settings, engine: Capacity) -> int:
    """How many workers to launch; on an elastic engine how many there may be.

    Raises:
        EngineError: More are needed than there are slots, or workers cannot start as they would have to.
        UserError: Several of them are to run one trial together, and torch, through which they meet, is missing.
    """
    size = _size(settings, engine)
    together = settings.gang.workers_per_trial if settings.training is None else size
    if together > 1 and engine.is_on_this_machine:
        require("torch", f"running one function on {together} workers together")
    return size


def _size(settings: Settings, engine: Capacity) -> int:
    gang = settings.gang
    engine.check_gang(_together(settings))
    if gang.workers is not None:
        engine.require(gang.workers)
        return gang.workers
    size = _growth(settings, engine) if engine.is_elastic else engine.default_workers()
    if settings.search.n_trials is not None and settings.training is None:
        size = min(size, settings.search.n_trials * gang.workers_per_trial)
    if gang.max_workers is not None:
        size = min(size, gang.max_workers)
    for name, needed in (
        ("workers_per_trial", gang.workers_per_trial),
        ("min_workers", settings.failures.min_workers or 1),
    ):
        if needed > size:
            remedy = (
                "use engine='local'" if engine.name == "inline" else "pass workers=N, or give the engine more slots"
            )
            raise EngineError(
                f"{name}={needed}, but engine={engine.name!r} has {size} worker{'s' * (size > 1)} by default; {remedy}"
            )
    if engine.is_on_this_machine:  # whose limits bound a default too
        engine.require(size)
    return size


def least_workers(settings: Settings, engine: Capacity, size: int) -> int:
    """How many of a gang's workers are enough, where the others are lost or do not come."""
    if settings.failures.min_workers is not None:
        return settings.failures.min_workers
    only_trains = settings.training is not None and settings.search.n_trials == 0
    return settings.gang.workers_per_trial if engine.is_elastic and not only_trains else size


def size_hints(settings: Settings, engine: Capacity, size: int) -> list[str]:
    """Hints about the size: workers that cannot be used, and a bound that nobody asked for."""
    hints, gang = engine.hints(size), settings.gang
    if rest := size % gang.workers_per_trial:
        given = f"workers={size}" if gang.workers is not None or not engine.is_elastic else f"a gang of {size}"
        hints.append(
            f"{given} is no multiple of workers_per_trial={gang.workers_per_trial}: {rest} of them will "
            "idle while the others run trials"
        )
    if gang.workers is None and gang.max_workers is None and engine.is_elastic and _is_cut(settings, engine):
        hints.append(f"the gang grows to {size} workers at most; pass max_workers=N for more")
    return hints


def _growth(settings: Settings, engine: Capacity) -> int:
    """How far a gang of no given size may grow."""
    if settings.training is not None:
        raise EngineError(
            f"engine={engine.name!r} grows with the cluster, so a training must know how many workers to wait for; "
            "pass workers=N"
        )
    most = engine.most_workers()
    if settings.gang.max_workers is not None:
        return settings.gang.max_workers if most is None else most
    return MOST_UNASKED if most is None else min(most, MOST_UNASKED)


def _is_cut(settings: Settings, engine: Capacity) -> bool:
    """Whether more workers than :data:`MOST_UNASKED` could come, and be of use."""
    most, of_use = engine.most_workers(), settings.search.n_trials
    fits = of_use is not None and of_use * settings.gang.workers_per_trial <= MOST_UNASKED
    return not fits and (most is None or most > MOST_UNASKED)


def _together(settings: Settings) -> str:
    """What has several workers run one trial; empty if nothing does."""
    if settings.gang.workers_per_trial > 1:
        return f"workers_per_trial={settings.gang.workers_per_trial}"
    return "a training on the whole gang" if settings.training is not None and settings.gang.workers != 1 else ""
