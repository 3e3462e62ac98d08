"""What a display shows of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from maggy_like.display.base import Snapshot, TrainingLine, WorkerLine
from maggy_like.display.failures import failures_by_kind
from maggy_like.protocol.endings import Ending, Phase
from maggy_like.protocol.messages import UNBOUNDED
from optimizers.core.study import Study
from optimizers.core.trial import TrialState


def draw(
    base: Snapshot,
    study: Study,
    *,
    phase: Phase | Ending,
    elapsed: float,
    now: float,
    objective: str | None,
    workers: Sequence[WorkerLine],
) -> Snapshot:
    """The study at this moment.

    Args:
        base: What stays the same.
        phase: What the run does, or how it ended.
        elapsed: Seconds since the call.
        now: Unix time.
        objective: Name of the optimised metric, once known.
        workers: What each worker does.
    """
    best = study.best if not base.is_ablation else None
    return replace(
        base,
        direction=study.direction,
        phase=phase,
        elapsed=elapsed,
        objective=objective,
        counts=dict(study.counts),
        pareto=len(study.pareto) if base.others else None,
        best_trial=best.id if best is not None else None,
        best_value=best.value if best is not None else None,
        best_step=best.value_step if best is not None else None,
        best_failed=best is not None and best.state is TrialState.FAILED,
        best_config=best.config if best is not None else None,
        workers=tuple(workers),
        training=_draw_training(study, now),
        failures=failures_by_kind([study.trials[number] for number in sorted(study.failing)]),
    )


def _draw_training(study: Study, now: float) -> TrainingLine | None:
    if not study.trials or not study.trials[-1].training:
        return None
    trial = study.trials[-1]
    seconds = trial.seconds + (0.0 if trial.started is None else now - trial.started)
    workers = trial.world_size if trial.attempt else 0
    budget = trial.training if trial.training < UNBOUNDED else 0
    others = tuple((name, value) for name, value in trial.newest.items() if name != trial.objective)
    return TrainingLine(trial.state, workers, trial.step, budget, trial.last_value, seconds, others)
