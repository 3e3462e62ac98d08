"""TensorBoard: a directory per trial with its curves and hyperparameters, for the tabs Scalars and HParams."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.errors import ConfigError
from maggy_like.trackers.base import Session, TrackedEnd, TrackedRun, Tracker, plain
from optimizers.core.events import AttemptEnded, AttemptStarted, CheckpointSaved, Event, Measured, TrialCreated
from optimizers.core.trial import TrialState
from optimizers.space import Config

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

DIRECTORY = "tensorboard"
"""Name of the directory of event files in the directory of a run."""


_OWNER = ".maggy_like"
"""Name of the file with the directory of the run whose event files are in a directory of ``logdir``."""


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Write TensorBoard event files. ``tensorboard --logdir DIRECTORY`` shows the curves and the HParams table.

    Args:
        logdir: Directory of the event files of all runs. Each run has a directory of its name in it, or ``NAME-2`` if a
            run in another directory has that name. Default: ``tensorboard`` in the directory of the run.
        patience: Seconds that the end of the run waits for the last files.

    Raises:
        UserError: TensorBoard is not installed, or the directory is not on this machine. Raised when the run starts.

    Example:
        >>> result = lagom(train_fn, space, callbacks=[TensorBoard()])
        >>> # tensorboard --logdir maggy_runs/NAME/tensorboard
    """

    logdir: str | os.PathLike[str] | None = None
    patience: float = 20.0
    name: str = field(default="tensorboard", init=False)

    def check(self, directory: str) -> None:
        """Check that TensorBoard is installed, and that the directory is on this machine.

        Raises:
            UserError: TensorBoard is not installed.
            ConfigError: ``logdir`` is not a directory of this machine.
        """
        require("tensorboard", "callbacks=[TensorBoard()]")
        if self.logdir is not None and not isinstance(self.logdir, str | os.PathLike):
            raise ConfigError(f"TensorBoard(logdir=...) must be a path, got {self.logdir!r}; omit it, or pass one")
        where = directory if self.logdir is None else os.fspath(self.logdir)
        if "://" in where:
            raise ConfigError(f"logdir must be a directory of this machine, got {where}; use TensorBoard(logdir=PATH)")

    def open(self, run: TrackedRun) -> Session:
        """Create the run's directory."""
        if self.logdir is not None:
            return _Session(_directory_in(Path(self.logdir).expanduser(), run))
        root = Path(run.directory) / DIRECTORY
        root.mkdir(parents=True, exist_ok=True)
        return _Session(root)


def _directory_in(logdir: Path, run: TrackedRun) -> Path:
    """Create a directory that only this run has. Runs in other directories may have its name."""
    owner = os.fsencode(run.directory if "://" in run.directory else os.path.abspath(run.directory))
    number, root = 1, logdir / run.name
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            with open(root / _OWNER, "xb") as file:
                file.write(owner)
            return root
        except FileExistsError:
            if (root / _OWNER).read_bytes() == owner:
                return root
        number += 1
        root = logdir / f"{run.name}-{number}"


class _Session(Session):
    """The event files of one run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[int, _EventFile] = {}
        self._steps: dict[int, dict[str, int]] = {}  # by trial and metric: the last

    def record(self, event: Event, now: float) -> None:
        match event:
            case TrialCreated(trial=trial, config=config):  # events that an earlier driver wrote are repeated
                shutil.rmtree(_directory(self._root, trial), ignore_errors=True)
                self._file(trial, now).begin(_directory(self._root, trial).name, config, now)
            case AttemptStarted() | CheckpointSaved():
                pass
            case Measured(trial=trial, columns=columns):
                file, last = self._file(trial, now), self._steps.setdefault(trial, {})
                for name, (steps, values) in columns.items():
                    for step, value in zip(steps, values, strict=True):
                        file.scalar(name, step, value, now)
                        last[name] = step
                file.flush()
            case AttemptEnded(trial=trial, state=state, metrics=metrics):
                file, last = self._file(trial, now), self._steps.pop(trial, {})
                step = max(last.values(), default=0)
                for name, value in metrics.items():
                    if last.get(name) != step:  # else it was reported there
                        file.scalar(name, step, value, now)
                if state.is_final:
                    file.end(now, failed=state is TrialState.FAILED)
                self._files.pop(trial).close()

    def close(self, end: TrackedEnd, now: float) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, trial: int, now: float) -> _EventFile:
        """Return the open file of a trial; each attempt has its own."""
        if trial not in self._files:
            self._files[trial] = _EventFile(_directory(self._root, trial), now)
        return self._files[trial]


class _EventFile:
    """An event file in the format of TensorBoard's writers, but without a thread per file."""

    def __init__(self, directory: Path, now: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._file: IO[bytes] = open(directory / name, "ab")  # noqa: SIM115  # it is open for as long as the attempt runs
        self._writer: RecordWriter = RecordWriter(self._file)
        self._write(Record(wall_time=now, file_version="brain.Event:2"))

    def begin(self, group: str, config: Config, now: float) -> None:
        """Write the hyperparameters."""
        from google.protobuf.struct_pb2 import Value
        from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo

        info = SessionStartInfo(group_name=group, start_time_secs=now)
        for name, value in config.items():
            info.hparams[name].CopyFrom(Value(**_typed(value)))
        self._hparams(SESSION_START_INFO_TAG, now, session_start_info=info)

    def end(self, now: float, *, failed: bool) -> None:
        """Write how the trial ended."""
        from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
        from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        info = SessionEndInfo(status=STATUS_FAILURE if failed else STATUS_SUCCESS, end_time_secs=now)
        self._hparams(SESSION_END_INFO_TAG, now, session_end_info=info)

    def scalar(self, name: str, step: int, value: float, now: float) -> None:
        """Write a measurement."""
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._write(Record(wall_time=now, step=step, summary=summary))

    def flush(self) -> None:
        """Make what was written visible to readers."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _hparams(self, tag: str, now: float, **info: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event as Record
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.plugins.hparams.metadata import PLUGIN_DATA_VERSION, PLUGIN_NAME
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        data = HParamsPluginData(version=PLUGIN_DATA_VERSION, **info).SerializeToString()
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=PLUGIN_NAME, content=data))
        self._write(Record(wall_time=now, summary=Summary(value=[Summary.Value(tag=tag, metadata=metadata)])))
        self.flush()

    def _write(self, record: Any) -> None:
        self._writer.write(record.SerializeToString())


def _directory(root: Path, trial: int) -> Path:
    return root / f"trial-{trial:05d}"


def _typed(value: Any) -> Mapping[str, Any]:
    """Return a parameter as a ``google.protobuf.Value``; types other than numbers and booleans become text."""
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int | float):
        return {"number_value": value}
    return {"string_value": plain(value)}
