"""MLflow: a parent run for each run, and a nested run for each trial."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.errors import ConfigError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.file_systems import open_url
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, TrackerUnavailable, plain
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.trial import Repeat, TrialState
from optimizers.space import Config

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

EXPERIMENT = "maggy_like"
"""Name of the default experiment."""

_MOST_METRICS, _MOST_PARAMS, _MOST_TEXT = 1000, 100, 5000
"""Limits of one call of MLflow: metrics, parameters, characters of a parameter or a tag."""

_MOST_NAME = 250
"""Characters of a name."""

_NAMES = "maggy_like.names"
"""The parent run's tag with the names that got a number, as JSON."""

_ODD = re.compile(r"[^\w\-./: ]")
"""Characters that names of metrics and parameters must not have."""

_STATUS = {
    TrialState.PENDING: "SCHEDULED",
    TrialState.RUNNING: "RUNNING",
    TrialState.PAUSED: "SCHEDULED",
    TrialState.COMPLETED: "FINISHED",
    TrialState.STOPPED: "KILLED",
    TrialState.FAILED: "FAILED",
}


@dataclass(frozen=True)
class MLflow(Tracker):
    """Record a run in MLflow: a parent run, and one nested run per trial.

    The parent run has the search space and the limits as parameters. When the run ends, it also has the best value, and
    the best configuration as ``best_config.json``. With ``confirm=``, it has the mean of the confirmed configuration as
    ``confirmed_METRIC``, and repeats have the tag ``maggy_like.repeat_of``. A nested run has its configuration, each
    metric by step, its best value, its state, and the reason of a failure. The state ``KILLED`` means that the trial
    was stopped early. The best trial also has its checkpoint as an artifact. With ``resume=True``, the same parent run
    continues.

    Args:
        experiment: Name of the experiment. Default: ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` if set,
            otherwise ``maggy_like``. On Databricks it is a path in the workspace, ``/Users/you@example.com/digits``.
        tracking_uri: URI of the tracking server, ``databricks``, or ``databricks://PROFILE``. Default: the setting of
            MLflow (``MLFLOW_TRACKING_URI`` or ``mlflow.set_tracking_uri``), which a Databricks notebook sets for you.
        state: If True, the best trial's checkpoint and files are copied to MLflow when the run ends. Default: True.
        patience: Seconds that the end of the run waits for MLflow. Increase it for large states.

    Raises:
        UserError: MLflow is not installed, or a setting is wrong. Raised when the run starts.

    Example:
        >>> tracker = MLflow(experiment="digits", tracking_uri="http://mlflow:5000")
        >>> result = lagom(train_fn, space, callbacks=[tracker])  # doctest: +SKIP
    """

    experiment: str | None = None
    tracking_uri: str | None = None
    state: bool = True
    patience: float = 30.0
    name: str = field(default="mlflow", init=False)

    @property
    def is_remote(self) -> bool:
        """Whether it contacts a server, and not a database or a directory of this machine."""
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        return uri.startswith(("http", "databricks"))

    def check(self, directory: str) -> None:
        """Check that MLflow is installed, and that Databricks gets a path as the experiment's name.

        Raises:
            UserError: MLflow is not installed.
            ConfigError: A setting is wrong.
        """
        require("mlflow", "callbacks=[MLflow()]")
        for argument in ("experiment", "tracking_uri"):
            given = getattr(self, argument)
            if given is not None and (not isinstance(given, str) or not given.strip()):
                raise ConfigError(f"MLflow({argument}=...) must be text, got {given!r}; omit it, or pass a name")
        where = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        named = name is not None or "MLFLOW_EXPERIMENT_ID" in os.environ
        if where.startswith("databricks") and (not named or (name is not None and not name.startswith("/"))):
            raise ConfigError(
                f"on Databricks, experiment must be a path in the workspace, got {name!r}; use "
                "MLflow(experiment='/Users/you@example.com/NAME')"
            )

    def open(self, run: TrackedRun) -> Session:
        """Create the parent run, or find that of a resumed run."""
        # Or else MLflow prints two lines at the end of each nested run, and asks the server for them.
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        from mlflow import MlflowClient

        with _answering():
            return _Session(self, run, MlflowClient(tracking_uri=self.tracking_uri))


@dataclass
class _Nested:
    """The nested run of a trial."""

    id: str
    has_params: bool = False
    is_over: bool = False
    state: str = ""
    # recorded before the run was resumed, by metric; None while unknown
    steps: dict[str, set[int]] | None = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)  # the last step that was logged, by metric
    objective: str = ""  # name of the optimized metric, once it was reported
    best: float | None = None  # best value of that metric, once an attempt has ended

    @property
    def is_final(self) -> bool:
        """Whether the trial is never retried, so only measurements that were left out may be missing."""
        return bool(self.state) and TrialState(self.state).is_final


class _Names:
    """Names that MLflow accepts; different names remain different."""

    def __init__(self, numbered: dict[str, dict[str, str]]) -> None:
        self.numbered = numbered  # names that received a number, by kind; a resumed run starts with these
        self._fitted = {kind: dict(names) for kind, names in numbered.items()}

    def fit(self, kind: str, name: str, *, own: bool = False) -> str:
        """Return the accepted name of a ``kind`` of things, which are the user's or ours."""
        names = self._fitted.setdefault(kind, {})
        key = f"own {name}" if own else name
        if (known := names.get(key)) is not None:
            return known
        taken = set(names.values())
        fitted = cleaned = _as_path(_ODD.sub("_", name))
        number = 1
        while fitted in taken:
            number += 1
            fitted = f"{cleaned[: _MOST_NAME - 1 - len(str(number))]}_{number}"
        if number > 1:
            self.numbered.setdefault(kind, {})[key] = fitted
        names[key] = fitted
        return fitted


def _as_path(name: str) -> str:
    """Return a name as a path that is spelled in only one way, as MLflow requires it."""
    parts = [f"__{part[2:]}" if part.startswith("..") else part for part in name.split("/") if part not in ("", ".")]
    return "/".join(parts)[:_MOST_NAME].rstrip("/") or "_"


class _Session(Session):
    """One run in MLflow."""

    def __init__(self, settings: MLflow, run: TrackedRun, client: MlflowClient) -> None:
        from mlflow.tracking.context.registry import resolve_tags

        self._settings = settings
        self._client = client
        self._experiment = _experiment(client, settings.experiment)
        self._trials: dict[int, _Nested] = {}
        self._context: dict[str, str] = resolve_tags()  # user, source, commit, notebook
        self._names = _Names({})
        self._n_numbered = 0
        known = self._find(run) if run.is_resumed else None
        if known is not None:
            self._parent: str = known.info.run_id
            client.update_run(self._parent, status="RUNNING")
            self._names = _Names(json.loads(known.data.tags.get(_NAMES, "{}")))
            self._read_nested()
            return
        tags = self._context | {"maggy_like.run": run.name, "maggy_like.directory": run.directory[:_MOST_TEXT]}
        self._parent = client.create_run(self._experiment, run_name=run.name, tags=tags).info.run_id
        self._log_params(self._parent, run.settings)

    def record(self, event: Event, now: float) -> None:
        with _answering():
            match event:
                case TrialCreated(trial=trial, config=config, repeat=repeat):
                    self._nested(trial, now, config, repeat)
                case AttemptStarted(trial=trial, config=config, repeat=repeat):
                    nested = self._nested(trial, now, config, repeat)
                    rests = nested.is_over or nested.state not in ("", TrialState.RUNNING)
                    if rests and not nested.is_final:
                        self._enter(nested, TrialState.RUNNING, now)
                case Measured(trial=trial, objective=objective, columns=columns):
                    nested = self._nested(trial, now)
                    nested.objective = objective
                    self._log_columns(nested, columns, now)
                case CheckpointSaved():
                    pass
                case AttemptEnded(trial=trial, config=config):
                    self._end(self._nested(trial, now, config), event, now)

    def close(self, end: TrackedEnd, now: float) -> None:
        with _answering():
            for nested in self._trials.values():
                if not nested.is_over:  # it waits for a promotion, or was interrupted: nothing will run it again
                    self._log_value(nested, now)
                    self._client.set_terminated(nested.id, "KILLED", int(now * 1000))
                    nested.is_over = True
            if end.best is not None:
                self._log_best(end, now)
            if end.confirmed is not None:
                trial, mean = end.confirmed
                name = self._fit("metric", f"confirmed_{end.objective}", own=True)
                self._client.log_metric(self._parent, name, mean, int(now * 1000))
                self._client.set_tag(self._parent, "maggy_like.confirmed_trial", str(trial.id))
            status = {Ending.ERROR: "FAILED", Ending.KILLED: "FAILED"}.get(
                end.ending, "FINISHED" if end.ending.is_planned else "KILLED"
            )
            self._client.set_tag(self._parent, "maggy_like.ending", str(end.ending))
            self._client.set_terminated(self._parent, status, int(now * 1000))
            if self._settings.state and end.best is not None and end.best_state is not None:
                self._copy_state(end.best.id, end.best_state)
            if self._settings.state and end.best is not None and end.files:
                self._copy_files(end.best.id, end.files)

    def _log_best(self, end: TrackedEnd, now: float) -> None:
        best = end.best
        if best is None:
            return
        if best.value is not None:
            self._client.log_metric(self._parent, self._best(end.objective), best.value, int(now * 1000))
        self._client.set_tag(self._parent, "maggy_like.best_trial", str(best.id))
        config = json.dumps(dict(best.config), indent=2, default=repr)
        self._client.log_text(self._parent, config, "best_config.json")

    def _log_value(self, nested: _Nested, now: float) -> None:
        """Log the trial's value under its name in the parent run, so that a table can be sorted by it."""
        if nested.objective and nested.best is not None:
            self._client.log_metric(nested.id, self._best(nested.objective), nested.best, int(now * 1000))

    def _copy_state(self, trial: int, url: str) -> None:
        """Copy a trial's checkpoint to its nested run as an artifact."""
        fs, path = open_url(url)
        with tempfile.TemporaryDirectory(prefix="maggy-mlflow-") as directory:
            local = os.path.join(directory, path.rstrip("/").rpartition("/")[2])
            fs.get(path, local, recursive=True)
            self._client.log_artifact(self._trials[trial].id, local, "state")

    def _copy_files(self, trial: int, directory: str) -> None:
        """Copy the files that a trial wrote to its nested run as artifacts."""
        from maggy_like.storage.trial_files import list_name, make_place, read_list

        if (listed := read_list(directory, trial)) is None:
            return
        fs, base = open_url(f"{directory}/{list_name(trial)}")
        with tempfile.TemporaryDirectory(prefix="maggy-mlflow-") as local:
            for name in listed.files:
                fs.get_file(f"{base}/{name}", make_place(local, name))
            self._client.log_artifacts(self._trials[trial].id, local, "files")

    def _find(self, run: TrackedRun) -> Run | None:
        """Return the newest parent run of a run, if there is one."""
        found = self._client.search_runs(
            [self._experiment],
            filter_string=f"tags.`maggy_like.run` = '{run.name}'",  # names have no quotes
            order_by=["attributes.start_time DESC"],
        )
        here = run.directory[:_MOST_TEXT]
        return next((it for it in found if it.data.tags.get("maggy_like.directory") == here), None)

    def _read_nested(self) -> None:
        token: str | None = None
        while True:
            page = self._client.search_runs(
                [self._experiment], filter_string=f"tags.`mlflow.parentRunId` = '{self._parent}'", page_token=token
            )
            for run in page:
                tags = run.data.tags
                if (trial := tags.get("maggy_like.trial", "")).isdigit():
                    state = tags.get("maggy_like.state", TrialState.RUNNING.value)
                    over = run.info.status in ("FINISHED", "FAILED", "KILLED")
                    nested = _Nested(
                        run.info.run_id, bool(run.data.params), over, state, None if run.data.metrics else {}
                    )
                    self._trials[int(trial)] = nested
            if not (token := page.token):
                return

    def _nested(self, trial: int, now: float, config: Config | None = None, repeat: Repeat | None = None) -> _Nested:
        """Return the nested run of a trial, and create it if there is none."""
        nested = self._trials.get(trial)
        if nested is None:
            tags = self._context | {"mlflow.parentRunId": self._parent, "maggy_like.trial": str(trial)}
            if repeat is not None:
                tags["maggy_like.repeat_of"] = str(repeat.of)
            made = self._client.create_run(self._experiment, int(now * 1000), tags, run_name=f"trial {trial}")
            nested = self._trials[trial] = _Nested(made.info.run_id)
        if config and not nested.has_params:
            self._log_params(nested.id, {name: plain(value) for name, value in config.items()})
            nested.has_params = True
        return nested

    def _log_params(self, run: str, params: Any) -> None:
        from mlflow.entities import Param

        named = [Param(self._fit("param", name), value[:_MOST_TEXT]) for name, value in params.items()]
        for start in range(0, len(named), _MOST_PARAMS):
            self._client.log_batch(run, params=named[start : start + _MOST_PARAMS])

    def _log_columns(self, nested: _Nested, columns: Any, now: float) -> None:
        """Log the measurements that are new: events of a resumed run may be repeated."""
        from mlflow.entities import Metric

        if nested.steps is None:
            nested.steps = self._known_steps(nested.id)
            nested.last = {name: max(steps) for name, steps in nested.steps.items()}
        known = nested.steps
        metrics = [
            Metric(self._fit("metric", name), value, int(now * 1000), step)
            for name, (steps, values) in columns.items()
            for step, value in zip(steps, values, strict=True)
            if step not in known.get(self._fit("metric", name), ())
        ]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(nested.id, metrics=metrics[start : start + _MOST_METRICS])
        for metric in metrics:
            nested.last[metric.key] = metric.step

    def _known_steps(self, run: str) -> dict[str, set[int]]:
        metrics = self._client.get_run(run).data.metrics
        return {name: {it.step for it in self._client.get_metric_history(run, name)} for name in metrics}

    def _end(self, nested: _Nested, event: AttemptEnded, now: float) -> None:
        if event.metrics:
            step = max(nested.last.values(), default=0)
            others = {
                name: value
                for name, value in event.metrics.items()
                if nested.last.get(self._fit("metric", name)) != step
            }
            columns = {name: ([step], [value]) for name, value in others.items()}
            self._log_columns(nested, columns, now)
        if nested.is_final and event.state == nested.state:  # repeated, for a resumed run
            return
        nested.best = None if event.state is TrialState.FAILED else event.value
        for name, value in event.attributes.items():
            self._client.set_tag(nested.id, self._fit("tag", name), plain(value)[:_MOST_TEXT])
        if event.failure is not None:
            said = f"{event.failure.kind}: {event.failure.message}"
            self._client.set_tag(nested.id, "maggy_like.failure", said[:_MOST_TEXT])
            if event.failure.traceback:
                self._client.log_text(nested.id, event.failure.traceback, f"failure-{event.attempt}.txt")
        self._enter(nested, event.state, now)

    def _best(self, objective: str) -> str:
        """Return the name of the best value, which must differ from the function's metrics."""
        return self._fit("metric", f"best_{objective}", own=True)

    def _fit(self, kind: str, name: str, *, own: bool = False) -> str:
        """Return a name that MLflow accepts; numbered ones are kept in the parent run for a resumed run."""
        fitted = self._names.fit(kind, name, own=own)
        if (count := sum(map(len, self._names.numbered.values()))) > self._n_numbered:
            self._n_numbered = count
            if len(text := json.dumps(self._names.numbered)) <= _MOST_TEXT:
                self._client.set_tag(self._parent, _NAMES, text)
        return fitted

    def _enter(self, nested: _Nested, state: TrialState, now: float) -> None:
        self._client.set_tag(nested.id, "maggy_like.state", state.value)
        if state.is_final:
            self._log_value(nested, now)
            self._client.set_terminated(nested.id, _STATUS[state], int(now * 1000))
        else:
            self._client.update_run(nested.id, status=_STATUS[state])
        nested.state, nested.is_over = state.value, state.is_final


def _experiment(client: MlflowClient, name: str | None) -> str:
    """Return the id of the experiment, and create it if there is none."""
    named = name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if named is None and (known := os.environ.get("MLFLOW_EXPERIMENT_ID")):
        return known
    named = named or EXPERIMENT
    found = client.get_experiment_by_name(named)
    if found is None:
        return str(client.create_experiment(named))
    return str(found.experiment_id)


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """Turn errors of a server that is unreachable or overloaded into :class:`TrackerUnavailable`."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
        if status >= 500 or status == 429:
            raise TrackerUnavailable(str(error)) from error
        raise
    except OSError as error:  # those of requests are OSErrors too
        raise TrackerUnavailable(f"{type(error).__name__}: {error}") from error
