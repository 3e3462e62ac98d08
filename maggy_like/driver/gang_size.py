"""How many workers a run gets, from its settings and its engine."""

from __future__ import annotations

from maggy_like.api.settings import Settings
from maggy_like.engines.base import Capacity
from maggy_like.errors import EngineError

MOST_UNASKED = 64
"""Workers to which a gang grows at most on a cluster that has no bound, unless somebody asks for more."""


def gang_size(settings: Settings, engine: Capacity) -> int:
    """How many workers to launch; on an elastic engine how many there may be.

    Raises:
        EngineError: More are needed than there are slots, or workers cannot start as they would have to.
    """
    engine.check_gang(_together(settings))
    if settings.workers is not None:
        engine.require(settings.workers)
        return settings.workers
    size = _growth(settings, engine) if engine.is_elastic else engine.default_workers()
    if settings.n_trials is not None and not settings.train_steps:
        size = min(size, settings.n_trials * settings.workers_per_trial)
    if settings.max_workers is not None:
        size = min(size, settings.max_workers)
    for name in ("workers_per_trial", "min_workers"):
        if (getattr(settings, name) or 1) > size:
            mend = "use engine='local'" if engine.name == "inline" else "pass workers=N, or give the engine more slots"
            raise EngineError(
                f"{name}={getattr(settings, name)}, but engine={engine.name!r} has {size} worker{'s' * (size > 1)} by "
                f"default; {mend}"
            )
    return size


def least_workers(settings: Settings, engine: Capacity, size: int) -> int:
    """How many of a gang's workers will do, where the others are lost or do not come."""
    if settings.min_workers is not None:
        return settings.min_workers
    only_trains = bool(settings.train_steps) and settings.n_trials == 0
    return settings.workers_per_trial if engine.is_elastic and not only_trains else size


def size_hints(settings: Settings, engine: Capacity, size: int) -> list[str]:
    """Hints about the size: workers that cannot be used, and a bound that nobody asked for."""
    hints = engine.hints(size)
    if rest := size % settings.workers_per_trial:
        given = f"workers={size}" if settings.workers is not None or not engine.is_elastic else f"a gang of {size}"
        hints.append(
            f"{given} is no multiple of workers_per_trial={settings.workers_per_trial}: {rest} of them will "
            "idle while the others run trials"
        )
    if settings.workers is None and settings.max_workers is None and engine.is_elastic and _is_cut(settings, engine):
        hints.append(f"the gang grows to {size} workers at most; pass max_workers=N for more")
    return hints


def _growth(settings: Settings, engine: Capacity) -> int:
    """How far a gang of no given size may grow."""
    if settings.train_steps:
        raise EngineError(
            f"engine={engine.name!r} grows with the cluster, so a training must know how many workers to wait for; "
            "pass workers=N"
        )
    most = engine.most_workers()
    if settings.max_workers is not None:
        return settings.max_workers if most is None else most
    return MOST_UNASKED if most is None else min(most, MOST_UNASKED)


def _is_cut(settings: Settings, engine: Capacity) -> bool:
    """Whether more workers than :data:`MOST_UNASKED` could come, and be of use."""
    most, of_use = engine.most_workers(), settings.n_trials
    fits = of_use is not None and of_use * settings.workers_per_trial <= MOST_UNASKED
    return not fits and (most is None or most > MOST_UNASKED)


def _together(settings: Settings) -> str:
    """What has several workers run one trial; empty if nothing does."""
    if settings.workers_per_trial > 1:
        return f"workers_per_trial={settings.workers_per_trial}"
    return "a training on the whole gang" if settings.train_steps and settings.workers != 1 else ""
