"""How far a training has come: what the callbacks of all libraries have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.protocol.values import ReportError, shortened
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.stop_state import TrialStopped


class Progress:
    """The steps of one training, from the state that its trial has saved.

    A step is saved before it is reported: at a milestone the report may be the last thing that the trial does, and a
    later attempt goes on from there.

    Args:
        reporter: Of the trial.
        save_every: Steps from one saved state to the next. The step that uses up the budget is saved always.

    Attributes:
        restored: What was saved, or None: the trial begins.
        step: The last step that was taken.
    """

    def __init__(self, reporter: Reporter, save_every: int) -> None:
        if not isinstance(reporter, Reporter):
            raise ReportError(f"the callback takes the reporter that train_fn gets, not {shortened(reporter)}")
        if type(save_every) is not int or save_every < 1:
            raise ReportError(f"save_every must be a whole number from 1 on, got {shortened(save_every)}")
        self._reporter = reporter
        self._save_every = save_every
        self._end: BaseException | None = None
        self.restored: dict[str, Any] | None = reporter.restore()
        if self.restored is not None and not (isinstance(self.restored, dict) and "step" in self.restored):
            raise ReportError(
                f"the trial's newest state was not saved by this callback: {shortened(self.restored)}; leave "
                "reporter.checkpoint(...) to the callback"
            )
        self.step: int = 0 if self.restored is None else self.restored["step"]

    @property
    def left(self) -> int:
        """Steps of the budget that are not taken yet."""
        return max(0, self._reporter.budget - self.step)

    @property
    def is_stopped(self) -> bool:
        """Whether the trial has been told to stop."""
        return self._end is not None

    def check_start(self, step: int, argument: str) -> None:
        """Check that the library goes on from the restored state.

        Args:
            step: How many steps its model has had.
            argument: What makes it go on.

        Raises:
            ReportError: It does not.
        """
        if step != self.step:
            raise ReportError(
                f"the training starts after step {step}, and the trial's state is of step {self.step}; pass {argument}"
            )

    def check_reported(self, step: int) -> None:
        """Check that a step was reported.

        Raises:
            ReportError: It was not, or more than once.
        """
        if step != self.step:
            raise ReportError(f"step {step} must call report(...) once, with its metrics")

    def take(self, step: int, metrics: Mapping[str, Any], state: Callable[[], dict[str, Any]] | None) -> bool:
        """Save the state and report the metrics of a step.

        Args:
            step: Its number; one past the budget is not reported.
            metrics: Numbers by name.
            state: Makes what is to be saved; None where nothing could go on from it.

        Returns:
            Whether the training goes on.

        Raises:
            ReportError: There are no metrics.
        """
        if step > self._reporter.budget:
            return False
        numbers = {name: value for name, value in metrics.items() if name != "step"}
        if not numbers:
            raise ReportError(f"step {step} has no metric to report; let the library evaluate or log one")
        if state is not None and (step % self._save_every == 0 or step >= self._reporter.budget):
            self._reporter.checkpoint({"step": step, **state()})
        try:
            self._reporter.report(step=step, **numbers)
        except (TrialStopped, BudgetUsed) as end:
            self._end = end
            return False
        self.step = step
        return self.left > 0

    def finish(self) -> None:
        """End the training function where the trial was told to stop, once the library has wound down."""
        if self._end is not None:
            raise self._end
