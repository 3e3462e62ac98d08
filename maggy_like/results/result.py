"""The result of a search, and everything that its user can do with it."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import whole
from maggy_like.display.base import Shown
from maggy_like.display.dashboard_link import Dashboard
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending
from maggy_like.results.data import (
    ParetoSet,
    ResultData,
    Training,
    check_files,
    every_trial,
    is_deleted,
    other_state,
    read_log,
    read_saved,
    state_of,
    training_of,
)
from maggy_like.storage.run_paths import RunPaths
from optimizers.checks import explains_arguments, no_attribute, short
from optimizers.core.study import Study
from optimizers.core.trial import Trial

if TYPE_CHECKING:
    import optuna
    import pandas
    from optuna.storages import BaseStorage

    from maggy_like.driver.followers import Callback
    from maggy_like.driver.settings import FailurePolicy
    from maggy_like.results.files import TrialFiles
    from maggy_like.results.plots import Plots
    from maggy_like.results.rerun import Rerun


@dataclass(frozen=True)
class RunActions:
    """The functions with which a result trains, watches and stops. Higher layers supply them."""

    train: Callable[..., Training] | None  # trains the best configuration; None if the training function is not known
    watch: Callable[[Result, bool | str, Sequence[Callback]], Result]  # shows the run until it ends
    stop: Callable[[str], None]  # asks the driver of the run with that journal to end it
    dashboard: Callable[[str, int], Dashboard]  # serves the page of the run with that journal at a port


_ELSEWHERE = {
    **dict.fromkeys(("best", "best_params", "best_params_", "best_hp", "best_hyperparameters"), "best_config"),
    **dict.fromkeys(("best_score", "best_score_", "best_loss", "best_metric", "best_val"), "best_value"),
    **dict.fromkeys(("best_model", "best_estimator_", "best_state", "model"), "load_best()"),
    **dict.fromkeys(("best_id", "best_result", "get_best_result", "get_best_trial"), "best_trial"),
    **dict.fromkeys(
        (
            "cv_results_",
            "dataframe",
            "df",
            "get_dataframe",
            "results",
            "results_df",
            "to_dataframe",
            "trials_dataframe",
        ),
        "to_pandas()",
    ),
    **dict.fromkeys(("history", "learning_curves"), "curves(), or plot.history()"),
    **dict.fromkeys(("config", "params"), "best_config, or trials[0].config"),
    **dict.fromkeys(("duration", "elapsed"), "seconds"),
    **dict.fromkeys(("errors", "exceptions"), "failures"),
    **dict.fromkeys(("logs", "tail"), "log(trial)"),
    **dict.fromkeys(("artifacts", "artifact_uri", "list_artifacts"), "files(trial)"),
    **dict.fromkeys(("status", "state"), "ending"),
    "best_trials": "pareto, or best_trial for one objective",
    "curve": "trials[0].curve, or curves()",
    "enqueue_trial": "lagom(..., points_to_evaluate=[...])",
    "get_trials": "trials, or to_optuna() for a function of Optuna",
    "n_trials": "len(result.trials)",
    "path": "directory",
    "plot_history": "plot.history()",
    **dict.fromkeys(("optimize", "resume"), "lagom(..., name=result.name, resume=True)"),
    "save": "directory, which has the run already; load_run(directory) reads it",
    "story": "decision_log()",
    "study_name": "name",
    "to_csv": "to_pandas().to_csv(path)",
    "to_json": "to_pandas().to_json(path)",
    "user_attrs": "trials[0].attributes",
}
"""What other libraries, and the past, call the attributes of a result."""


@dataclass(frozen=True, repr=False)
class Result(ResultData):
    """The result of one :func:`~maggy_like.lagom` call.

    Attributes:
        trials: All trials, by number. Failed ones have their traceback in ``failure``.
        best_trial: The trial with the best :attr:`~optimizers.core.trial.Trial.value`. None if no trial has a value,
            and for several objectives (see ``pareto``) and ablations.
        objective: Name of the optimized metric. With several objectives, the first one.
        direction: ``max`` or ``min``.
        ending: ``completed``, ``timeout``, ``target``, ``interrupted``, ``stopped`` or ``cancelled`` (its Spark jobs
            were cancelled, or the Spark session was stopped). ``error`` if an error ended the search. From
            :func:`~maggy_like.load_run` also ``running`` and ``killed``.
        seconds: Wall time of all drivers of the run, including those before a resume.
        is_longer: If True, the run took longer than ``seconds``, because a killed driver recorded no end.
        directory: The run's directory, as a path or URL. It has the journal, the logs and, without ``store``, the
            checkpoints.
        space: The search space.
        others: Direction and name of all objectives except the first.
        pareto: With several objectives, the trials that no other trial dominates. Trial A dominates B if A is better in
            one objective and not worse in any. Their ``values`` are in the order of the objectives.
        store: URL of the directory of the checkpoints. Trials have the names of their checkpoints in it.
        confirmed: Comparison of the best configurations, trained again with other seeds (``confirm``). None without it.
        training: Result of the training that followed the search (``train_best``). None without one.

    ``print(result)`` shows the summary and the best trials. If the run's display has just shown the summary, it shows
    only the trials. ``repr(result)`` is always the summary.

    Example:
        >>> result = lagom(train_fn, space)
        >>> result.best_config, result.best_value, result.best_step
        ({'lr': ..., 'units': ...}, 0.8..., 3)
        >>> model.load_state_dict(result.load_best()["model"])
        <All keys matched successfully>
    """

    _actions: RunActions | None = field(default=None, compare=False)
    _shown: Shown = field(default=Shown(), compare=False)

    def __getstate__(self) -> dict[str, Any]:
        actions = None if self._actions is None else replace(self._actions, train=None)  # it holds the engine
        return {**self.__dict__, "_actions": actions, "_shown": Shown()}

    @property
    def best_checkpoint(self) -> str | None:
        """URL of the best trial's checkpoint (see :meth:`checkpoint_of`). None if there is none."""
        return None if self.best_trial is None else self.checkpoint_of(self.best_trial)

    def load_best(self) -> Any:
        """Load what ``reporter.checkpoint`` saved at the best value of the search (see :meth:`load`).

        Returns:
            The checkpoint. A warning says if it is of another step than the best value.

        Raises:
            UserError: There is no best trial, or it has no checkpoint, or a sharded one.
            SavedStateError: The checkpoint is damaged or missing.

        Example:
            >>> model.load_state_dict(result.load_best()["model"])
            <All keys matched successfully>
        """
        if self.best_trial is None:
            raise UserError("there is no best trial; use result.load(trial) for the checkpoint of another trial")
        return self._load(self.best_trial)

    def checkpoint_of(self, trial: int | Trial) -> str | None:
        """Return the URL of the checkpoint that a trial saved at its best value.

        A checkpoint belongs to the report that follows it, or to the step of ``reporter.checkpoint(state, step=...)``.
        If none belongs to the best value, the one with the best value among the saved ones is returned. If none of them
        belongs to a report, the newest one is. In a search with ``value="last"`` the one of the last value is returned,
        or the newest one if there is none.

        Args:
            trial: The trial or its number.

        Returns:
            The URL. None if the trial saved no checkpoint.

        Raises:
            UserError: There is no such trial.
        """
        return state_of(self, self._trial(trial))

    def load(self, trial: int | Trial) -> Any:
        """Load the checkpoint that a trial saved at its best value (see :meth:`checkpoint_of`).

        Args:
            trial: The trial or its number.

        Returns:
            The checkpoint. A warning says if it is of another step than the trial's value (``trial.saved_steps``).

        Raises:
            UserError: There is no such trial, or it has no checkpoint, or a sharded one. Load a sharded checkpoint
                with ``torch.distributed.checkpoint`` from its URL.
            SavedStateError: The checkpoint is damaged or missing.
        """
        return self._load(self._trial(trial))

    def _check_directory(self) -> None:
        check_files(self)
        if is_deleted(self):
            raise UserError(
                f"the run's directory {self.directory} was deleted, and the logs and files of its trials with it; pass "
                "directory='maggy_runs' to SearchCV to keep them"
            )

    def _load(self, trial: Trial) -> Any:
        if said := other_state(self, trial):
            warnings.warn(said, stacklevel=3)
        check_files(self)
        return read_saved(self.checkpoint_of(trial), f"trial {trial.id}")

    def _trial(self, trial: int | Trial) -> Trial:
        if isinstance(trial, Trial):
            return trial
        every = every_trial(self)
        found = next((known for known in every if known.id == trial), None)
        if found is None:
            raise UserError(
                f"trial must be one of the {len(every)} trials of this result, got {short(trial)}; use its number"
            )
        return found

    @explains_arguments({"config": "maggy_like.run(train_fn, config={})"})
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
        """Train the best configuration, or the confirmed one, on several workers together, as a separate run.

        ``lagom(..., train_best=True)`` trains it on the workers of the search, without releasing them in between.

        Args:
            workers: Number of workers. Default that of the search.
            budget: Steps to train for. Default the search's ``max_budget``.
            failures: Retries and time limits. Default those of the search, with all workers.
            name: Name of the run. Default a name made from that of the search.
            resume: If True, continue the training called ``name`` (``training.name``). Default False.
            progress: If True, show a live display.

        Returns:
            The result of the training.

        Raises:
            UserError: No trial has a value, this result was loaded from files, or there is nothing to resume.
            EngineError: The engine cannot provide the workers.
            TrainingError: The training failed for good.

        Example:
            >>> training = result.train(budget=10, progress=False)
            >>> training.value
            0.8...
        """
        if self.best_config is None:
            raise UserError("there is no best configuration to train; pass one to maggy_like.run(train_fn, config)")
        if self._actions is None or self._actions.train is None:
            raise UserError(
                "this result was loaded from files, which do not have the training function; use "
                "maggy_like.run(train_fn, result.best_config, workers=N)"
            )
        confirmed = None if self.confirmed is None else self.confirmed.config
        return self._actions.train(confirmed or self.best_config, workers, budget, failures, name, resume, progress)

    def rerun(self, trial: int | Trial, train_fn: Callable[..., Any], *, from_checkpoint: bool = False) -> Rerun:
        """Run a trial again in this process, for a debugger, and compare its reports with the recorded ones.

        The function gets the trial's configuration and the budget of its last attempt. Nothing in the run's directory
        changes. What the function raises is raised here.

        Args:
            trial: The trial or its number.
            train_fn: The training function.
            from_checkpoint: If True, ``reporter.restore()`` returns the checkpoint from which the last attempt began:
                its own, or with PBT that of another trial. Default False: the trial begins at its first step.

        Returns:
            What was reported and returned, and the first value that differs.

        Raises:
            UserError: There is no such trial, or its last attempt began without a checkpoint.
            SavedStateError: The checkpoint that its last attempt began from is missing or damaged.

        Example:
            >>> print(load_run("maggy_runs/august").rerun(7, train_fn))
            trial 7 was run again: 3 reports, 3 values compared, all equal
        """
        from maggy_like.results.rerun import rerun

        return rerun(self, self._trial(trial), train_fn, from_checkpoint=from_checkpoint)

    def watch(self, *, progress: bool | str = True, callbacks: Sequence[Callback] = ()) -> Result:
        """Show the run until it ends, wherever its driver is. Ctrl-C ends only the watching.

        Args:
            progress: If True, show a live display.
            callbacks: Functions of one event, and trackers. They receive all events of the run, from the first one.

        Returns:
            The result, as :func:`~maggy_like.load_run` returns it. After Ctrl-C its ``ending`` is ``running``.

        Raises:
            MaggyError: An error ended the search, and its driver was a task of the cluster.

        Example:
            >>> load_run("maggy_runs/august").watch(progress=False).ending.value
            'completed'
        """
        return self._followed("watch").watch(self, progress, callbacks)

    def stop(self) -> None:
        """Stop a run of ``lagom(..., driver="cluster")`` from any process. It ends with the result so far.

        Raises:
            UserError: The run has ended, or its driver is not a task of the cluster.

        Example:
            >>> load_run("s3://bucket/runs/first").stop()  # doctest: +SKIP
        """
        self._followed("stop").stop(str(self.directory))

    def dashboard(self, port: int = 0) -> Dashboard:
        """Serve the run as a page for browsers on this machine, live while it runs. It only reads the run's files.

        ``maggy-like dashboard`` does the same from a shell, and for other machines.

        Args:
            port: Port. Default 0, any free one.

        Returns:
            The dashboard with its ``url`` and ``close()``. A notebook shows it as a frame in the cell.

        Raises:
            UserError: plotly is missing, or the port is in use.

        Example:
            >>> with result.dashboard() as dashboard:
            ...     print(dashboard)
            http://127.0.0.1:...
        """
        return self._followed("dashboard").dashboard(str(self.directory), port)

    def _followed(self, method: str) -> RunActions:
        if self._actions is None:
            raise UserError(f"this result does not know its run; use load_run(DIRECTORY).{method}()")
        return self._actions

    def log(self, trial: int | Trial, rank: int = 0) -> str:
        """Return everything that a trial printed on one of its workers, attempt by attempt.

        Of a running trial the last minute may be missing, if its worker does not see the run's directory.

        Args:
            trial: The trial or its number.
            rank: Rank of the worker, for a trial that several workers run together. Default 0.

        Returns:
            The text. Empty if the trial printed nothing.

        Raises:
            UserError: There is no such trial, the rank is not an integer, or the run's directory cannot be read.
        """
        known, rank = self._trial(trial), whole("rank", rank, least=0)
        self._check_directory()
        return read_log(RunPaths(self.directory, self.store), known.id, rank, known.attempt)

    def files(self, trial: int | Trial) -> TrialFiles:
        """Return the files that a trial wrote to ``reporter.directory``, or to its working directory.

        They are as of the end of its last attempt. Its worker may take a moment to copy them after that.

        Args:
            trial: The trial or its number.

        Returns:
            The files, which can be listed, read and fetched.

        Raises:
            UserError: There is no such trial, or the run's directory cannot be read.

        Example:
            >>> result.files(7)  # doctest: +SKIP
            best.pt                1.3 MB
            runs/events.out.tfeve  4.2 kB
            >>> result.files(7).fetch("trial7")  # doctest: +SKIP
            [PosixPath('trial7/best.pt'), PosixPath('trial7/runs/events.out.tfeve')]
        """
        from maggy_like.results.files import TrialFiles

        self._check_directory()
        return TrialFiles(RunPaths(self.directory, self.store).files, self._trial(trial).id)

    def decision_log(self) -> list[str]:
        """Return one line per decision: why each trial was created, started, promoted, paused, stopped or retried.

        Returns:
            The lines in the order of time, with the seconds since the first decision. Attach them to a bug report.

        Raises:
            JournalError: The run's journal cannot be read.

        Example:
            >>> for line in result.decision_log():
            ...     print(line)
            0.00 s  trial 0 is created: proposal 0 of the optimizer
            0.01 s  trial 0 attempt 1 starts on worker 0, up to step 3
            ...
        """
        from maggy_like.results.record import decision_log, read_record

        return decision_log(read_record(self).contents.events)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with one row per trial.

        ``value`` is the trial's value, ``value_step`` the step at which it was measured, and ``step`` the newest step.
        Without reports there are no steps. ``attempts`` counts the first attempt and all retries. With several
        objectives there is one column per objective instead of ``value``: ``value_accuracy``, ... If a parameter or a
        returned value has the name of another column, its column is ``param_NAME`` or ``attribute_NAME``.

        Returns:
            Number, state, value, steps, attempts, seconds, failure, parent, parameters and other returned values of
            each trial.

        Raises:
            UserError: pandas is missing.
        """
        from maggy_like.results.tables import trials_table

        return trials_table(self)

    def curves(self) -> pandas.DataFrame:
        """Return a table with one row per measurement.

        Returns:
            The columns trial, step, metric and value.

        Raises:
            UserError: pandas is missing.
        """
        from maggy_like.results.tables import curves_table

        return curves_table(self)

    @property
    def plot(self) -> Plots:
        """The plots of the run, as plotly figures.

        ``.history()``, ``.curves()``, ``.training()``, ``.parallel()``, ``.slices()``, ``.importance()``,
        ``.timeline()`` and ``.pareto()``.

        Example:
            >>> result.plot.history().write_html("history.html")
            >>> result.plot.slices(["lr", "units"]).write_html("slices.html")
        """
        from maggy_like.results.plots import Plots

        return Plots(self)

    def report(self, path: str | PathLike[str]) -> None:
        """Write one HTML page about the run. It needs no other file and no network.

        The page has the best configuration with the place of its checkpoint, the plots of :attr:`plot`, the best
        trials and failures with their tracebacks. It also has the worker time that early stopping saved, and the
        driver's machine and versions.

        Args:
            path: Path or URL of the page.

        Raises:
            UserError: plotly is missing, or the file cannot be written.

        Example:
            >>> load_run("maggy_runs/august").report("august.html")
        """
        from maggy_like.results.report import write_report

        write_report(self, path)

    def to_optuna(self, storage: str | BaseStorage | None = None, study_name: str | None = None) -> optuna.Study:
        """Return the run as a study of Optuna, for its plots and its dashboard, or to continue it there.

        Trials keep their numbers, configurations, values, reports (as intermediate values) and metrics (as user
        attributes, with ``attempts``, ``step``, ``value_step`` and ``failure``). Stopped and paused trials are pruned
        in Optuna. A completed trial without a finite value has failed. A trial that did not end is waiting, and Optuna
        runs it first if it continues. The best trial is always complete, since Optuna looks for the best one only
        among complete trials. Durations are right. Dates are those of the export.

        Args:
            storage: Storage of the study, as Optuna spells it. Default in memory.
            study_name: Name of the study. Default the name of the run.

        Returns:
            The study.

        Raises:
            UserError: Optuna is missing, the storage cannot be opened, or it has a study of that name.

        Example:
            >>> study = result.to_optuna()
            >>> len(study.trials)
            20
            >>> optuna.visualization.plot_slice(study).write_html("slices.html")
        """
        from maggy_like.results.optuna_studies import to_optuna

        return to_optuna(self, storage, study_name)

    def importance(self) -> dict[str, float]:
        """Return how much each parameter contributed to being among the best quarter of the trials.

        The shares are those of PED-ANOVA (Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying
        Hyperparameter Importance in Arbitrary Subspaces", 2023). It compares the parameter values of the best trials
        with all values that were tried. Therefore it does not matter if a search tried good values more often. A
        conditional parameter counts only in trials in which it is active.

        Trials are compared at one step, the highest that a quarter of them reached. Trials that failed, or were stopped
        or paused before that step, rank last. Trials that did not end, or were lost with their worker, are left out.

        Returns:
            One share per parameter, the largest first. They sum to 1. Constants have 0.

        Raises:
            UserError: Optuna is missing, fewer than 20 trials ended, or they do not differ.

        Example:
            >>> result.importance()
            {'lr': 0.81, 'units': 0.19}
        """
        from maggy_like.results.optuna_studies import importance

        return importance(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

        def __getitem__(self, key: Any) -> Any:
            public = {name: name for name in dir(self) if not name.startswith("_")} | _ELSEWHERE
            remedy = public.get(key, "trials") if isinstance(key, str) else "trials"
            raise TypeError(f"a result has attributes, not items; use result.{remedy}")

    def __repr__(self) -> str:
        from maggy_like.results.tables import summary

        return summary(self)

    def __str__(self) -> str:
        from maggy_like.results.tables import printed

        return printed(self, is_shown=self._shown.summary)

    def _repr_html_(self) -> str:
        """Return the five best trials or the Pareto set for notebooks, with the summary if no cell shows it."""
        import html

        if importlib.util.find_spec("pandas") is None:
            return f"<pre>{html.escape(str(self))}</pre>"
        import pandas

        from maggy_like.results.tables import ranked

        most = pandas.get_option("display.max_rows")  # a Pareto set may have thousands
        table = ranked(self, self.to_pandas()).to_html(index=False, max_rows=most)
        return table if self._shown.summary and self.trials else f"<pre>{html.escape(repr(self))}</pre>{table}"


def make_result(
    study: Study,
    paths: RunPaths,
    *,
    objective: str | None,
    others: tuple[tuple[str, str], ...],
    ending: Ending,
    seconds: float,
    created: float,
    is_longer: bool = False,
    finds_best: bool = True,
    actions: RunActions | None = None,
) -> Result:
    """Make the result of a search or training from its study.

    The name of the objective is by default that of the trials.
    """
    confirmed = None
    trainings = [trial for trial in study.trials if trial.is_final_training]
    name = objective or next((trial.objective for trial in study.trials if trial.objective), "value")
    if study.repeats:
        from maggy_like.results.confirmed import confirmed_of  # loads scipy, which only confirmations should cost

        confirmed = confirmed_of(study, name)
    return Result(
        trials=[trial for trial in study.trials if not trial.training],
        best_trial=study.best if finds_best else None,
        objective=name,
        direction=study.direction or "max",
        ending=ending,
        seconds=seconds,
        is_longer=is_longer,
        directory=paths.directory,
        space=study.problem.space,
        others=others,
        pareto=ParetoSet(study.pareto, [name, *(other for _, other in others)]),
        store=paths.store,
        confirmed=confirmed,
        training=training_of(study, paths, name, ending, created) if trainings else None,
        _value_rule=study.value_rule,
        _created=created,
        _actions=actions,
    )
