"""The callback of LightGBM."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from maggy_like.callbacks.progress import Progress
from maggy_like.extras import require

require("lightgbm", "LightGBMReport")

import lightgbm  # noqa: E402  # the error above names the extra
from lightgbm.callback import CallbackEnv, EarlyStopException  # noqa: E402

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


class LightGBMReport:
    """Reports each boosting round of LightGBM. A metric ``auc`` on the set ``valid`` is reported as ``valid_auc``.

    What is saved is ``{"step": rounds, "model": text}``; ``lightgbm.Booster(model_str=text)`` reads it.

    Of ``lightgbm.cv`` it reports the means over the folds, and saves nothing, as LightGBM cannot go on with one: a
    promoted trial begins anew.

    Early stopping (``lightgbm.early_stopping``) may stand beside it; it counts anew in each attempt of a trial.

    Args:
        reporter: Of the trial.
        save_every: Rounds from one saved state to the next.

    Attributes:
        init_model: The saved model to go on from, or None.
        num_boost_round: Rounds that are left of the budget; at least 1, since LightGBM takes no 0. A round past the
            budget is taken back.

    Example:
        >>> report = LightGBMReport(reporter)
        >>> lightgbm.train(params, data, report.num_boost_round, valid_sets=[held_out], valid_names=["valid"],
        ...                init_model=report.init_model, callbacks=[report])
    """

    order = 25  # LightGBM calls in this order; early stopping, at 30, then ends no round that was not reported
    before_iteration = False

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        self._progress = Progress(reporter, save_every)
        restored = self._progress.restored
        self.init_model = None if restored is None else lightgbm.Booster(model_str=restored["model"])
        self.num_boost_round = max(1, self._progress.left)

    def __call__(self, env: CallbackEnv) -> None:
        """Report a round. Called by LightGBM."""
        progress, model = self._progress, env.model
        if env.iteration == env.begin_iteration:
            progress.check_start(env.begin_iteration, "init_model=report.init_model")
        if not progress.left:
            model.rollback_one_iter()
            raise EarlyStopException(progress.step - 1, [])
        metrics = {f"{dataset}_{metric}": value for dataset, metric, value, *_ in env.evaluation_result_list}
        state = None if isinstance(model, lightgbm.CVBooster) else partial(_state, model)
        progress.take(env.iteration + 1, metrics, state)
        progress.finish()


def _state(model: lightgbm.Booster) -> dict[str, Any]:
    return {"model": model.model_to_string(num_iteration=-1)}
