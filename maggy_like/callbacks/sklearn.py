"""Steps of scikit-learn's iterative estimators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from maggy_like.callbacks.progress import Progress

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


def sklearn_steps(
    estimator: Any, reporter: Reporter, *, grow: str | None = None, by: int = 1, save_every: int = 1
) -> Iterator[tuple[Any, Callable[..., None]]]:
    """Yield an estimator and a function ``report(**metrics)`` for each step that is left of the budget.

    Each step calls ``partial_fit``, or ``fit`` of an estimator that goes on where it was (``warm_start``), then
    ``report``, which saves the whole estimator and reports. A promoted trial gets the saved one.

    What is saved is ``{"step": steps, "model": estimator}``.

    Args:
        estimator: Not fitted yet.
        reporter: Of the trial.
        grow: For ``warm_start``: the parameter that is larger by ``by`` in each step, such as ``"n_estimators"``, or
            ``"max_iter"`` of ``HistGradientBoostingClassifier``. ``warm_start`` is turned on. It must count all that
            was trained: of ``MLPClassifier``, whose ``fit`` trains ``max_iter`` epochs more, use ``partial_fit``.
        by: By how much.
        save_every: Steps from one saved state to the next.

    Raises:
        ReportError: A step was not reported.

    Example:
        >>> for model, report in sklearn_steps(SGDClassifier(alpha=alpha), reporter):
        ...     model.partial_fit(x, y, classes=[0, 1])
        ...     report(accuracy=model.score(held_out, truth))
        >>> for model, report in sklearn_steps(GradientBoostingClassifier(), reporter, grow="n_estimators", by=5):
        ...     report(accuracy=model.fit(x, y).score(held_out, truth))
    """
    progress = Progress(reporter, save_every)
    model = estimator if progress.restored is None else progress.restored["model"]

    def report(**metrics: float) -> None:
        progress.take(progress.step + 1, metrics, lambda: {"model": model})
        progress.finish()

    while progress.left:
        if grow is not None:
            model.set_params(warm_start=True, **{grow: (progress.step + 1) * by})
        step = progress.step
        yield model, report
        progress.check_reported(step + 1)
