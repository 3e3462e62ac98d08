"""The callback of XGBoost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.callbacks.progress import Progress
from optimizers.checks import explains_init

require("xgboost", "XGBoostReport")

import xgboost  # noqa: E402  # the error above names the extra

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


@explains_init
class XGBoostReport(xgboost.callback.TrainingCallback):
    """Report each boosting round of XGBoost. The metric ``auc`` on the set ``valid`` is reported as ``valid_auc``.

    The checkpoint is ``{"step": rounds, "model": bytes}``. Load it by
    ``xgboost.Booster(model_file=bytearray(state["model"]))``.

    With ``xgboost.cv``, the means over the folds are reported and no state is saved, because XGBoost cannot continue a
    cross-validation. A promoted trial starts from the first round.

    You may put XGBoost's ``EarlyStopping`` after it in the list of callbacks. Its count of rounds starts again in each
    attempt of a trial.

    Args:
        reporter: Reporter of the trial.
        save_every: Number of rounds between checkpoints. Default: 1.

    Attributes:
        xgb_model: Saved model to continue, or None.
        num_boost_round: Number of rounds left of the budget.

    Raises:
        ReportError: An argument is invalid, or no metric was computed.

    Example:
        >>> def train(eta, reporter):
        ...     report = XGBoostReport(reporter)
        ...     params = {"eta": eta, "eval_metric": "auc", "objective": "binary:logistic"}
        ...     data, held_out = xgboost.DMatrix(x, y), xgboost.DMatrix(x_test, y_test)
        ...     xgboost.train(params, data, report.num_boost_round, evals=[(held_out, "valid")], verbose_eval=False,
        ...                   xgb_model=report.xgb_model, callbacks=[report])
        >>> lagom(train, {"eta": Float(0.01, 0.3, log=True)}).objective
        'valid_auc'
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        super().__init__()
        self._progress = Progress(reporter, save_every, "XGBoost")
        restored = self._progress.restored
        self.xgb_model = None if restored is None else xgboost.Booster(model_file=bytearray(restored["model"]))
        self.num_boost_round = self._progress.left

    def before_training(self, model: Any) -> Any:
        """Count from the checkpoint, if the training starts from it. Called by XGBoost."""
        saved = 0 if self.xgb_model is None else self.xgb_model.num_boosted_rounds()
        start = self._progress.step if model.num_boosted_rounds() == saved else 0  # it may begin with another model
        self._progress.begin(start, "xgb_model=report.xgb_model")
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Return True if the budget is used up. Called by XGBoost."""
        return not self._progress.left

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Report a round, and return True if the trial is to stop. Called by XGBoost."""
        is_cv = not isinstance(model, xgboost.Booster)
        newest = {f"{data}_{name}": log[-1] for data, logs in evals_log.items() for name, log in logs.items()}
        metrics = {name: value[0] for name, value in newest.items()} if is_cv else newest  # of a mean and a deviation
        state = None if is_cv else lambda: {"model": bytes(model.save_raw())}
        self._progress.take(self._progress.step + 1, metrics, state)
        if self._progress.is_stopped and is_cv and model.attr("best_iteration") is None:
            model.best_iteration = epoch  # cv reads it when a callback ends the training
        return self._progress.is_stopped

    def after_training(self, model: Any) -> Any:
        """End the training function if the trial was stopped. Called by XGBoost."""
        self._progress.finish()
        return model
