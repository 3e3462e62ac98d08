"""The plots of a result, one method each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from maggy_like.errors import UserError
from maggy_like.extras import require
from maggy_like.results.data import ResultData
from maggy_like.results.optuna_studies import importance
from maggy_like.results.record import read_record

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Plots:
    """The pictures of a run, as figures of plotly: a notebook shows them, ``.write_html(path)`` keeps one.

    They are those of :meth:`Result.report <maggy_like.Result.report>`. All need plotly (``pip install
    'maggy_like[report]'``). Of thousands of trials, a part is drawn, the best among it, and the picture says so.

    Args:
        result: The run's result.

    Example:
        >>> result.plot.history()
        >>> result.plot.slices(["lr", "units"]).write_html("slices.html")
    """

    def __init__(self, result: ResultData) -> None:
        self._result = result

    def history(self) -> Figure:
        """What each trial was worth when it ended, and the best so far; a row for each objective.

        Raises:
            UserError: plotly is missing, or the run's journal is gone.
        """
        require("plotly", "plot.history()")
        from maggy_like.results.figures import history

        return history(read_record(self._result))

    def curves(self) -> Figure:
        """The objective over the steps, trial by trial; crosses where trials ended early, dashed lines at the rungs.

        Raises:
            UserError: plotly is missing, or no trial has reported anything.
        """
        require("plotly", "plot.curves()")
        from maggy_like.results.figures import curves

        return curves(self._result)

    def training(self) -> Figure:
        """The curves of the training that followed the search.

        Raises:
            UserError: plotly is missing, or there was no training.
        """
        require("plotly", "plot.training()")
        if self._result.training is None:
            raise UserError("no training followed this search; pass train_best=True to lagom")
        from maggy_like.results.figures import training_curves

        return training_curves(self._result.training)

    def parallel(self, params: Sequence[str] | None = None) -> Figure:
        """Parallel coordinates: each trial is a line through its parameters to its value.

        Args:
            params: The parameters to draw; by default the first twelve.

        Raises:
            UserError: plotly is missing, no trial has a value, or there is no such parameter.
        """
        require("plotly", "plot.parallel()")
        from maggy_like.results.figures import parallel

        return parallel(self._result, params)

    def slices(self, params: Sequence[str] | None = None) -> Figure:
        """The value over each parameter alone; later trials are orange.

        Args:
            params: The parameters to draw; by default the first twelve.

        Raises:
            UserError: plotly is missing, no trial has a value, or there is no such parameter.
        """
        require("plotly", "plot.slices()")
        from maggy_like.results.figures import slices

        return slices(self._result, params)

    def importance(self) -> Figure:
        """How much each parameter had to do with being among the best (see :meth:`Result.importance`).

        Raises:
            UserError: plotly or Optuna is missing, fewer than 20 trials ended, or they do not differ.
        """
        require("plotly", "plot.importance()")
        from maggy_like.results.figures import importance_bars

        return importance_bars(importance(self._result))

    def timeline(self) -> Figure:
        """Which worker ran which trial when: gaps are idle time.

        Raises:
            UserError: plotly is missing, or the run's journal is gone.
        """
        require("plotly", "plot.timeline()")
        from maggy_like.results.figures import timeline

        return timeline(read_record(self._result))

    def pareto(self) -> Figure:
        """The first two of several objectives: all trials, and the Pareto set among them.

        Raises:
            UserError: plotly is missing, or there is one objective only.
        """
        require("plotly", "plot.pareto()")
        from maggy_like.results.figures import pareto

        return pareto(self._result)
