"""What a search found."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import whole
from maggy_like.errors import UserError
from maggy_like.results.data import ResultData, Training, read_log, read_saved, state_of
from maggy_like.results.optuna_studies import importance, to_optuna
from maggy_like.results.plots import Plots
from maggy_like.results.record import read_story
from maggy_like.results.tables import curves_table, ranked, summary, trials_table
from maggy_like.storage.run_paths import RunPaths
from optimizers.core.trial import Trial

if TYPE_CHECKING:
    import optuna
    import pandas
    from optuna.storages import BaseStorage

    from maggy_like.driver.failure_policy import FailurePolicy
    from maggy_like.driver.followers import Callback


@dataclass(frozen=True)
class RunActions:
    """What a result does with its run; the functions come from the parts that start and follow runs.

    Attributes:
        train: Trains the best configuration; None where the function is not known.
        watch: Shows the run until it ends, and returns its result.
        stop: Asks the driver of the run with that journal to end it.
    """

    train: Callable[..., Training] | None
    watch: Callable[[Result, bool | str, Sequence[Callback]], Result]
    stop: Callable[[str], None]


@dataclass(frozen=True, repr=False)
class Result(ResultData):
    """The outcome of one :func:`~maggy_like.lagom` call.

    Attributes:
        trials: All trials, by number; failed ones with their traceback in ``failure``.
        best_trial: The trial that is worth most (see :attr:`~optimizers.core.trial.Trial.value`), or None when none
            has a value, or where there are several objectives (see ``pareto``) or an ablation.
        objective: Name of the optimised metric; of the first, where there are several.
        direction: ``max`` or ``min``.
        ending: ``completed``, ``timeout``, ``target`` (a trial has it), ``interrupted``, ``stopped`` or ``cancelled``
            (from outside: somebody cancelled its Spark jobs, or stopped the Spark session); ``error`` in an error's
            result; of :func:`~maggy_like.load_run` also ``running`` and ``killed``.
        seconds: Wall time in which drivers had the run, also before a resume.
        is_longer: Whether they had it for longer than that: one that was killed recorded no end.
        directory: The run's folder, with its journal, its logs and, unless a store was named, its saved states: a path,
            or a URL where one was given.
        space: The search space.
        others: The other objectives where there are several: direction and name of each.
        pareto: Of several objectives, the trials that no other dominates: none is better in one objective and
            not worse in any. Their ``values`` are in the order of the objectives.
        store: URL of the folder that holds the saved states; trials know them by their names in it.
        training: What came of ``train_best``, if that was asked for.

    Example:
        >>> result = lagom(train_fn, space)
        >>> result.best_config, result.best_value, result.best_step
        >>> model.load_state_dict(result.load_best()["model"])
    """

    _actions: RunActions | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        actions = None if self._actions is None else replace(self._actions, train=None)  # it holds the engine
        return {**self.__dict__, "_actions": actions}

    @property
    def best_checkpoint(self) -> str | None:
        """URL of the best trial's saved state (see :meth:`checkpoint_of`); None where there is none."""
        return None if self.best_trial is None else self.checkpoint_of(self.best_trial)

    def load_best(self) -> Any:
        """Read the state that ``reporter.checkpoint`` saved at the best value of the search (see :meth:`load`).

        Raises:
            UserError: There is no best trial, it has saved no state, or that is sharded or gone.

        Example:
            >>> model.load_state_dict(result.load_best()["model"])
        """
        if self.best_trial is None:
            raise UserError("there is no best trial; result.load(trial) reads the state of any one")
        return self.load(self.best_trial)

    def checkpoint_of(self, trial: int | Trial) -> str | None:
        """URL of the state that a trial saved at its best value; None where it saved none.

        A state belongs to the report that follows it, or to that of ``reporter.checkpoint(state, step=...)``. Where no
        state was saved at the step of the best value, it is the one with the best value of those that were saved;
        where none of them belongs to a report, the newest. In a search with ``value="last"`` it is that of the last
        value, or the newest where that was not saved.

        Args:
            trial: The trial or its number.
        """
        return state_of(self, self._trial(trial))

    def load(self, trial: int | Trial) -> Any:
        """Read the state that a trial saved at its best value (see :meth:`checkpoint_of`).

        Args:
            trial: The trial or its number.

        Raises:
            UserError: There is no such trial, it has saved no state, or that is sharded (read it with
                ``torch.distributed.checkpoint`` from its URL) or gone.
        """
        found = self._trial(trial)
        return read_saved(self.checkpoint_of(found), f"trial {found.id}")

    def _trial(self, trial: int | Trial) -> Trial:
        if isinstance(trial, Trial):
            return trial
        found = next((known for known in self.trials if known.id == trial), None)
        if found is None:
            raise UserError(f"there is no trial {trial!r} among the {len(self.trials)} of this result")
        return found

    def train(
        self,
        *,
        workers: int | None = None,
        budget: int | None = None,
        failures: FailurePolicy | None = None,
        name: str | None = None,
        resume: bool = False,
        progress: bool | str = True,
    ) -> Training:
        """Train the best configuration on several workers together, as a run of its own.

        ``lagom(..., train_best=True)`` does so on the workers of the search, without giving them back.

        Args:
            workers: Number of workers. Default that of the search.
            budget: Steps to train for. Default the search's ``max_budget``.
            failures: Retries and time limits. Default those of the search, with all workers.
            name: Name of the run. Default a name made from that of the search.
            resume: If True, continue the training called ``name`` (``training.name``). Default False.
            progress: If True, show a live display.

        Raises:
            UserError: No trial has a value, this result was read from a file, or there is nothing to resume.
            EngineError: The engine cannot provide the workers.
            TrainingError: The training failed for good.

        Example:
            >>> training = result.train(workers=8, budget=100)
            >>> training.checkpoint, training.value
        """
        if self.best_config is None:
            raise UserError("there is no best configuration to train; pass one to maggy_like.run(train_fn, config)")
        if self._actions is None or self._actions.train is None:
            raise UserError(
                "this result was read from a file, so its function is not known; use "
                "maggy_like.run(train_fn, result.best_config, workers=N)"
            )
        return self._actions.train(self.best_config, workers, budget, failures, name, resume, progress)

    def watch(self, *, progress: bool | str = True, callbacks: Sequence[Callback] = ()) -> Result:
        """Show a run that goes on elsewhere until it ends; Ctrl-C ends the watching alone.

        Args:
            progress: Show a live display.
            callbacks: Functions that take each event of the run, from its first on, and trackers.

        Returns:
            Its result, which :func:`~maggy_like.load_run` gives too; ``ending`` is ``running`` after Ctrl-C.

        Raises:
            MaggyError: What ended the search, if its driver was a task of the cluster.

        Example:
            >>> result = load_run("s3://bucket/runs/first").watch()
        """
        return self._followed("watch").watch(self, progress, callbacks)

    def stop(self) -> None:
        """Ask a run of ``lagom(..., driver="cluster")`` that goes on elsewhere to end with what it has.

        Raises:
            UserError: The run has ended, or its driver takes no requests.

        Example:
            >>> load_run("s3://bucket/runs/first").stop()
        """
        self._followed("stop").stop(str(self.directory))

    def _followed(self, method: str) -> RunActions:
        if self._actions is None:
            raise UserError(f"this result belongs to no run; use load_run(DIRECTORY).{method}()")
        return self._actions

    def log(self, trial: int, rank: int = 0) -> str:
        """All that a trial printed on one of its workers, attempt by attempt, as far as its log files are seen here.

        Of a trial that runs on a worker which does not see the run's folder, the last minute may be missing.

        Args:
            trial: Its number.
            rank: Which of the workers that run it together.

        Raises:
            UserError: There is no such trial, ``trial`` or ``rank`` is no number, or a store does not answer.
        """
        trial, rank = whole("trial", trial, least=0), whole("rank", rank, least=0)
        trained = None if self.training is None else self.training.trial
        found = trained if trained is not None and trained.id == trial else self._trial(trial)
        return read_log(RunPaths(self.directory, self.store), trial, rank, found.attempt)

    def story(self) -> list[str]:
        """Why each trial was created, started, promoted, paused, stopped or tried again: a line each, for a bug report.

        Example:
            >>> for line in result.story():
            ...     print(line)
        """
        return read_story(self.directory)

    def to_pandas(self) -> pandas.DataFrame:
        """A row a trial: number, state, value, steps, attempts, seconds, failure, parent, parameters, and attributes.

        ``value`` is what the trial is worth and ``value_step`` the step at which that was measured; ``step`` is the
        newest one. Trials of a function that reports nothing have no steps. ``attempts`` counts the runs that were
        begun because a fault had ended the one before, and the first. Where there are several objectives, each has a
        column of its own instead of ``value``: ``value_accuracy``, ...

        A parameter with the name of another column has the column ``param_NAME``, such an attribute ``attribute_NAME``.

        Raises:
            UserError: pandas is missing.
        """
        return trials_table(self)

    def curves(self) -> pandas.DataFrame:
        """A row a measurement: trial, step, metric, value."""
        return curves_table(self)

    @property
    def plot(self) -> Plots:
        """The run's pictures, drawn by plotly.

        ``.history()``, ``.curves()``, ``.training()``, ``.parallel()``, ``.slices()``, ``.importance()``,
        ``.timeline()`` and ``.pareto()``.

        Example:
            >>> result.plot.history()
            >>> result.plot.slices(["lr", "units"]).write_html("slices.html")
        """
        return Plots(self)

    def report(self, path: str | PathLike[str]) -> None:
        """Write a page that says all there is to say of the run; it needs nothing else, and loads nothing.

        It has the best configuration and where its state is, the pictures of :attr:`plot`, the best trials, failures
        with their tracebacks, what stopping has saved, and what the run's driver ran on.

        Args:
            path: The page's file: a path or a URL.

        Raises:
            UserError: plotly is missing, or the file cannot be written.

        Example:
            >>> load_run("maggy_runs/august").report("august.html")
        """
        from maggy_like.results.report import write_report

        write_report(self, path)

    def to_optuna(self, storage: str | BaseStorage | None = None, study_name: str | None = None) -> optuna.Study:
        """The run as a study of Optuna, for its plots and its dashboard, or to go on with it there.

        Trials keep their numbers, configurations, values, reports (as intermediate values) and metrics (as user
        attributes, beside ``attempts``, ``step``, ``value_step`` and ``failure``). Stopped and paused trials are
        pruned ones; a completed one without a finite value has failed; those that did not end wait, and Optuna
        runs them first if it goes on. The best trial is complete there, whatever its ``state`` here: Optuna looks for
        the best among complete ones alone. Durations are right, dates are those of the export.

        Args:
            storage: Where the study is kept, as Optuna spells it; in memory by default.
            study_name: Its name; by default that of the run.

        Raises:
            UserError: Optuna is missing, or the storage has a study of that name.

        Example:
            >>> optuna.visualization.plot_slice(result.to_optuna())
            >>> result.to_optuna(storage="sqlite:///studies.db")
        """
        return to_optuna(self, storage, study_name)

    def importance(self) -> dict[str, float]:
        """How much each parameter had to do with being among the best quarter of the trials.

        Shares of PED-ANOVA (Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying
        Hyperparameter Importance in Arbitrary Subspaces", 2023), which compares the values that the best
        trials have with those that were tried at all. So a search that tried good values more often
        does not deceive it, and a conditional parameter counts where it is active.

        Trials are compared at one step, the highest that a quarter of them reached. Those that were
        stopped or paused before, or failed, rank behind; those that did not end, or were lost with
        their worker, are left out.

        Returns:
            A share for each parameter, the largest first; they sum to 1. Constants have 0.

        Raises:
            UserError: Optuna is missing, fewer than 20 trials ended, or they do not differ.

        Example:
            >>> result.importance()
            {'lr': 0.81, 'units': 0.16, 'act': 0.03}
        """
        return importance(self)

    def __repr__(self) -> str:
        return summary(self)

    def _repr_html_(self) -> str:
        """The summary and the five best trials, or the Pareto set, for notebooks."""
        import html

        if importlib.util.find_spec("pandas") is None:
            return f"<pre>{html.escape(str(self))}</pre>"
        table = ranked(self, self.to_pandas())
        return f"<pre>{html.escape(str(self))}</pre>{table.to_html(index=False)}"
