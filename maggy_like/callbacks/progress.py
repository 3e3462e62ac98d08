"""The progress of a training, common to the callbacks of all libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.protocol.values import ReportError, shortened
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.reporter_hooks import ReporterHooks
from maggy_like.worker.child.stop_state import TrialStopped


class Progress:
    """The steps of one training, counted from the state that its trial has saved if the library continues from it.

    A step is saved before it is reported, because the report may end the attempt at a milestone. A later attempt
    continues from that state. Every ``save_every``-th step is saved, and always the last one and one after which the
    trial is paused.

    ``alone`` is the name of a library that does not divide the work among the workers of a trial; empty if it does.
    """

    def __init__(self, reporter: Reporter, save_every: int, alone: str = "") -> None:
        if not isinstance(reporter, Reporter):
            raise ReportError(f"reporter must be the Reporter that train_fn gets, got {shortened(reporter)}")
        if type(save_every) is not int or save_every < 1:
            raise ReportError(f"save_every must be an integer of at least 1, got {shortened(save_every)}")
        self._reporter, self._hooks = reporter, ReporterHooks(reporter)
        self._save_every = save_every
        if alone and reporter.world_size > 1 and reporter.is_main:
            reporter.log(
                f"each of the {reporter.world_size} workers of this trial trains the whole model, because {alone} does "
                "not divide the work among them"
            )
        self._end: BaseException | None = None
        self.restored: dict[str, Any] | None = reporter.restore()  # None at the beginning of a trial
        if self.restored is not None and not (isinstance(self.restored, dict) and "step" in self.restored):
            self._hooks.start_over("remove reporter.checkpoint(...), since the callback saves")
            self.restored = None
        if self.restored is not None and self.restored.get("trial") not in (None, self._hooks.restored_trial):
            raise ReportError(
                f"the restored state must be of trial {self._hooks.restored_trial}, got one of trial "
                f"{self.restored['trial']}; do not replace files in the directory of the checkpoints"
            )
        self.step: int = 0 if self.restored is None else self.restored["step"]  # the last step that was taken

    @property
    def parent(self) -> int | None:
        """The other trial that saved the restored state, with another configuration; None if there is none."""
        return None if self.restored is None else self._hooks.parent

    @property
    def left(self) -> int:
        """Number of steps left of the budget."""
        return max(0, self._reporter.budget - self.step)

    @property
    def is_stopped(self) -> bool:
        """Whether the trial was stopped."""
        return self._end is not None

    def begin(self, step: int, argument: str) -> None:
        """Count from the step after which the library starts.

        If that is not the restored one, log that ``argument`` would continue from there.
        """
        if step != self.step and self.restored is not None:
            self._hooks.start_over(f"pass {argument}")
        self.step = step

    def check_reported(self, step: int) -> None:
        """Check that a step was reported exactly once."""
        if step != self.step:
            raise ReportError(
                f"step {step} must be reported exactly once; call report(...) with its metrics in each step"
            )

    def take(self, step: int, metrics: Mapping[str, Any], state: Callable[[], dict[str, Any]] | None) -> bool:
        """Save the state of a step, report its metrics, and return whether the training continues.

        A step past the budget is not reported, and one without metrics is rejected. ``state`` returns the state to
        save; it is None if no training could continue from it.
        """
        if step > self._reporter.budget:
            return False
        numbers = {name: value for name, value in metrics.items() if name != "step"}
        if not numbers:
            raise ReportError(f"step {step} must have a metric, got none; configure the library to evaluate or log one")
        is_last = step >= self._reporter.budget or self._hooks.pauses_at(step)
        if state is not None and (is_last or step % self._save_every == 0):
            of = {"trial": self._reporter.trial, "attempt": self._reporter.attempt}
            self._reporter.checkpoint({"step": step, **of, **state()})
        try:
            self._reporter.report(step=step, **numbers)
        except (TrialStopped, BudgetUsed) as end:
            self._end = end
            return False
        self.step = step
        return self.left > 0

    def finish(self) -> None:
        """End the training function if the trial was stopped, once the library has cleaned up."""
        if self._end is not None:
            raise self._end
