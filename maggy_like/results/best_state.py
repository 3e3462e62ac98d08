"""Where the state of a trial's best value is."""

from __future__ import annotations

from maggy_like.protocol.state_names import state_url
from maggy_like.results.data import ResultData
from optimizers.core.trial import Trial


def state_of(result: ResultData, trial: Trial) -> str | None:
    """URL of the state that a trial saved at its best value; see :meth:`maggy_like.Result.checkpoint_of`."""
    state = trial.saved(newest=result._worth == "last")
    return None if state is None else state_url(result.store, state.name)
