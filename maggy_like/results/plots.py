"""The plots of a result, one method each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData
from maggy_like.results.optuna_studies import importance
from maggy_like.results.record import read_record
from optimizers.checks import no_attribute

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


_ELSEWHERE = {
    "contour": "slices()",
    "edf": "history()",
    "intermediate_values": "curves()",
    "learning_curves": "curves()",
    "optimization_history": "history()",
    "parallel_coordinate": "parallel()",
    "param_importances": "importance()",
    "pareto_front": "pareto()",
    "show": "history().show()",
    "slice": "slices()",
}
"""What Optuna calls the plots."""


class Plots:
    """The plots of a run, as plotly figures.

    A notebook shows a figure, and ``.write_html(path)`` saves it. :meth:`Result.report <maggy_like.Result.report>` has
    the same plots on one page. All of them need plotly (``pip install 'maggy_like[report]'``). With thousands of
    trials only a part of them is drawn, including the best ones, and the plot has a note about it.

    Args:
        result: Result of the run.

    Example:
        >>> result.plot.history().write_html("history.html")
        >>> result.plot.slices(["lr", "units"]).write_html("slices.html")
    """

    def __init__(self, result: ResultData) -> None:
        self._result = result

    def __repr__(self) -> str:
        plots = (name for name in dir(type(self)) if not name.startswith("_"))
        return f"plots of {self._result.name}: {', '.join(f'{name}()' for name in plots)}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

    def history(self) -> Figure:
        """Plot the value of each trial when it ended, and the best value so far. Each objective has its own row.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, or the run's journal is missing.
        """
        require("plotly", "plot.history()")
        from maggy_like.results.figures.values import history

        return history(read_record(self._result))

    def curves(self, by: str | None = None) -> Figure:
        """Plot the objective over the steps, with one line per trial.

        Crosses mark trials that ended early, dashed lines mark rungs.

        Args:
            by: Name of the parameter whose values distinguish the lines. Default the state of the trials.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, no trial has reported anything, or there is no such parameter.
        """
        require("plotly", "plot.curves()")
        from maggy_like.results.figures.curves import curves

        return curves(self._result, by)

    def training(self) -> Figure:
        """Plot the curves of the training that followed the search.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, or there was no training.
        """
        require("plotly", "plot.training()")
        if self._result.training is None:
            raise UserError("no training followed this search; pass train_best=True to lagom")
        from maggy_like.results.figures.curves import training_curves

        return training_curves(self._result.training)

    def parallel(self, params: Sequence[str] | None = None) -> Figure:
        """Plot parallel coordinates: each trial is a line through its parameters to its value.

        Args:
            params: Names of the parameters to draw. Default the first twelve.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, no trial has a value, or there is no such parameter.
        """
        require("plotly", "plot.parallel()")
        from maggy_like.results.figures.parameters import parallel

        return parallel(self._result, params)

    def slices(self, params: Sequence[str] | None = None) -> Figure:
        """Plot the value over each single parameter. Later trials are orange.

        Args:
            params: Names of the parameters to draw. Default the first twelve.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, no trial has a value, or there is no such parameter.
        """
        require("plotly", "plot.slices()")
        from maggy_like.results.figures.parameters import slices

        return slices(self._result, params)

    def importance(self) -> Figure:
        """Plot how much each parameter contributed to being among the best trials (see :meth:`Result.importance`).

        Returns:
            The figure.

        Raises:
            UserError: plotly or Optuna is missing, fewer than 20 trials ended, or they do not differ.
        """
        require("plotly", "plot.importance()")
        from maggy_like.results.figures.parameters import importance_bars

        return importance_bars(importance(self._result))

    def timeline(self) -> Figure:
        """Plot when each worker ran which trial. Gaps are idle time.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, or the run's journal is missing.
        """
        require("plotly", "plot.timeline()")
        from maggy_like.results.figures.workers import timeline

        return timeline(read_record(self._result))

    def pareto(self) -> Figure:
        """Plot the first two of several objectives, with all trials and the Pareto set.

        Returns:
            The figure.

        Raises:
            UserError: plotly is missing, or there is only one objective.
        """
        require("plotly", "plot.pareto()")
        from maggy_like.results.figures.values import pareto

        return pareto(self._result)
