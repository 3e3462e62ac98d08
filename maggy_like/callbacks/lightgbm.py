"""The callback of LightGBM."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.callbacks.progress import Progress
from optimizers.checks import explains_init

require("lightgbm", "LightGBMReport")

import lightgbm  # noqa: E402  # the error above names the extra
from lightgbm.callback import CallbackEnv, EarlyStopException  # noqa: E402

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


@explains_init
class LightGBMReport:
    """Report each boosting round of LightGBM. The metric ``auc`` on the set ``valid`` is reported as ``valid_auc``.

    The checkpoint is ``{"step": rounds, "model": text}``. Load it by ``lightgbm.Booster(model_str=state["model"])``.

    With ``lightgbm.cv``, the means over the folds are reported and no state is saved, because LightGBM cannot continue
    a cross-validation. A promoted trial starts from the first round.

    You may combine it with ``lightgbm.early_stopping``, whose count of rounds starts again in each attempt of a trial.

    Args:
        reporter: Reporter of the trial.
        save_every: Number of rounds between checkpoints. Default: 1.

    Attributes:
        init_model: Saved model to continue, or None.
        num_boost_round: Number of rounds left of the budget. At least 1, because LightGBM rejects 0. A round past the
            budget is removed from the model.

    Raises:
        ReportError: An argument is invalid, or no metric was computed.

    Example:
        >>> def train(lr, reporter):
        ...     report = LightGBMReport(reporter)
        ...     params = {"learning_rate": lr, "metric": "auc", "objective": "binary", "verbose": -1}
        ...     data = lightgbm.Dataset(x, y)
        ...     held_out = data.create_valid(x_test, y_test)
        ...     lightgbm.train(params, data, report.num_boost_round, valid_sets=[held_out], valid_names=["valid"],
        ...                    init_model=report.init_model, callbacks=[report])
        >>> lagom(train, {"lr": Float(0.01, 0.3, log=True)}).objective
        'valid_auc'
    """

    order = 25  # LightGBM calls in this order; early stopping, at 30, then ends no round that was not reported
    before_iteration = False

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        self._progress = Progress(reporter, save_every, "LightGBM")
        restored = self._progress.restored
        self.init_model = None if restored is None else lightgbm.Booster(model_str=restored["model"])
        self.num_boost_round = max(1, self._progress.left)

    def __call__(self, env: CallbackEnv) -> None:
        """Report a round. Called by LightGBM."""
        progress, model = self._progress, env.model
        if env.iteration == env.begin_iteration:
            saved = 0 if self.init_model is None else self.init_model.current_iteration()
            start = progress.step if env.begin_iteration == saved else 0  # it may begin with another model
            progress.begin(start, "init_model=report.init_model")
        if not progress.left:
            model.rollback_one_iter()
            raise EarlyStopException(progress.step - 1, [])
        metrics = {f"{dataset}_{metric}": value for dataset, metric, value, *_ in env.evaluation_result_list}
        state = None if isinstance(model, lightgbm.CVBooster) else partial(_state, model)
        progress.take(progress.step + 1, metrics, state)
        progress.finish()


def _state(model: lightgbm.Booster) -> dict[str, Any]:
    return {"model": model.model_to_string(num_iteration=-1)}
