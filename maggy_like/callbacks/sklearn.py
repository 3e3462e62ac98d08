"""Steps of scikit-learn's iterative estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from maggy_like.callbacks.progress import Progress
from maggy_like.protocol.values import ReportError, shortened

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


def sklearn_steps(
    estimator: Any, reporter: Reporter, *, grow: str | None = None, by: int = 1, save_every: int = 1
) -> Iterator[tuple[Any, Callable[..., None]]]:
    """Yield an estimator and a function ``report(**metrics)`` for each step left of the budget.

    In each step, train the estimator by ``partial_fit``, or by ``fit`` if the estimator continues its training
    (``warm_start``). Then call ``report``, which saves the whole estimator and reports the metrics. A promoted or
    retried trial receives the saved estimator. The checkpoint is ``{"step": steps, "model": estimator}``.

    A trial that continues from another trial's state (``PBT``) receives the saved estimator with the parameters of its
    own. An estimator may ignore those that it reads only when its training begins, such as ``learning_rate_init`` of
    ``MLPClassifier``.

    Args:
        estimator: Estimator that is not fitted yet.
        reporter: Reporter of the trial.
        grow: Parameter that ``by`` is added to in each step, for estimators with ``warm_start``, which is turned on.
            Examples are ``"n_estimators"``, ``"max_iter"`` of ``HistGradientBoostingClassifier``, and
            ``"randomforestclassifier__n_estimators"`` of a pipeline. The parameter
            must count the whole training. ``max_iter`` of ``MLPClassifier`` does not, so use ``partial_fit`` there.
            Default: None, for ``partial_fit``.
        by: Increase of ``grow`` per step. Default: 1.
        save_every: Number of steps between checkpoints. Default: 1.

    Yields:
        The estimator, and the function that reports the step.

    Raises:
        ReportError: An argument is invalid, a step was not reported exactly once, or another trial's state is of an
            estimator with other parts.

    Example:
        >>> from sklearn.ensemble import GradientBoostingClassifier
        >>> from sklearn.linear_model import SGDClassifier
        >>> def train(alpha, reporter):
        ...     for model, report in sklearn_steps(SGDClassifier(alpha=alpha), reporter):
        ...         model.partial_fit(x, y, classes=[0, 1])
        ...         report(accuracy=model.score(x_test, y_test))
        >>> lagom(train, {"alpha": Float(1e-5, 1e-1, log=True)}).objective
        'accuracy'
        >>> def train_trees(rate, reporter):
        ...     trees = GradientBoostingClassifier(learning_rate=rate)
        ...     for model, report in sklearn_steps(trees, reporter, grow="n_estimators", by=5):
        ...         report(accuracy=model.fit(x, y).score(x_test, y_test))
        >>> lagom(train_trees, {"rate": Float(0.01, 1, log=True)}).best_value > 0.9
        True
    """
    progress = Progress(reporter, save_every, "scikit-learn")
    model = estimator if progress.restored is None else progress.restored["model"]
    if progress.parent is not None:
        _configure(model, estimator, progress.parent)

    def report(**metrics: float) -> None:
        progress.take(progress.step + 1, metrics, lambda: {"model": model})
        progress.finish()

    while progress.left:
        if grow is not None:
            part, separator, _ = grow.rpartition("__")  # of a pipeline, or empty
            model.set_params(**{f"{part}{separator}warm_start": True, grow: (progress.step + 1) * by})
        step = progress.step
        yield model, report
        progress.check_reported(step + 1)


def _configure(model: Any, estimator: Any, parent: int) -> None:
    """Give an estimator that another trial has trained the parameters of this trial's own."""
    parameters = estimator.get_params()
    if type(model) is not type(estimator) or model.get_params().keys() != parameters.keys():
        raise ReportError(
            f"the estimator must have the parts of the one that trial {parent} saved ({shortened(model)}), got "
            f"{shortened(estimator)}; remove what chooses the parts from the space, or use an optimizer other than PBT"
        )
    model.set_params(**{name: value for name, value in parameters.items() if not _has_parts(value)})


def _has_parts(value: Any) -> bool:
    """Return whether a value is an estimator, or a list with some, which are fitted in the saved one."""
    return hasattr(value, "get_params") or (isinstance(value, list | tuple) and any(map(_has_parts, value)))
