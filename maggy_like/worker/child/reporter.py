"""The reporter, through which a training function reports, logs, saves and restores.

A report appends to a list. A service thread sends the list at regular intervals. The trial waits for the driver's
verdict only at a milestone, and at the rung at which it is paused.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from maggy_like.protocol.messages import MAX_NAMES, MAX_STEP, UNBOUNDED, Assign
from maggy_like.protocol.torchrun import rank_and_ranks
from maggy_like.protocol.values import ReportError, shortened
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.saves import Saves
from maggy_like.worker.child.sender import REPORT_COST, ROOM, Sender, as_number, as_step, check_name, pick_objective

if TYPE_CHECKING:
    import torch


OnPause = Callable[["Reporter"], tuple[Assign, CheckpointStore, Sender] | None]


class BudgetUsed(BaseException):
    """The trial is paused, or reported past its budget.

    A ``BaseException``, so that ``except Exception`` does not catch it.
    """


_ELSEWHERE = {
    "checkpoint(state)": ("save", "save_checkpoint", "save_state"),
    "restore()": ("load", "load_checkpoint", "load_state", "get_checkpoint"),
    "report(accuracy=..., step=...)": ("broadcast", "log_metric", "log_metrics", "report_metric", "report_metrics"),
    "report(), which ends a trial that is to stop": ("should_prune", "should_stop"),
    "a parameter of the function, and its domain in the search space": (
        "suggest_categorical",
        "suggest_float",
        "suggest_int",
        "suggest_loguniform",
        "suggest_uniform",
    ),
    "attributes[name] = value": ("set_user_attr",),
    "attributes": ("user_attrs",),
    "config": ("params", "hparams", "hyperparameters"),
    "trial": ("number", "trial_id"),
    "directory": ("checkpoint_dir", "log_artifact", "log_dir", "logdir", "output_dir", "trial_dir"),
}
"""What to use instead of names in other libraries, and in the first Maggy."""


class _Elsewhere:
    """An attribute that a reporter lacks. One ``__getattr__`` for all would slow each report down by a third."""

    def __init__(self, error: str) -> None:
        self.error = error

    def __get__(self, owner: object, kind: type) -> NoReturn:
        raise AttributeError(self.error)


TOO_MANY = (
    "report() must have at most one value without a name, got report({}); use report({one}, step=step) for one metric, "
    "or report(loss=..., accuracy=..., step=step) for several"
)

GIVEN_TWICE = (
    "report() must have one value of the objective {0!r}, got {1} without a name and {0}={2}; "
    "name the other metric too: report({0}=..., train_loss=..., step=step)"
)

NOT_AFTER = (
    "step must be greater than the last one, which is {last}, got {step}; report all metrics of a step in one call: "
    "report(loss=loss, accuracy=accuracy, step=epoch), and average metrics of batches over the epoch"
)


class Reporter:
    """Report metrics, log lines, and save and restore checkpoints from a training function.

    A training function with a parameter named ``reporter`` receives one. To try the function without a search, create
    one yourself: ``train(lr=0.1, reporter=Reporter(budget=10))``. It checks the calls, and sends nothing.

    Args:
        budget: Number of steps of a full training.
        store: Store for checkpoints. Default: they are kept in memory.

    Attributes:
        budget: Number of steps of a full training.
        directory: Directory for the trial's files, which are kept in the run's directory.
        trial: Number of the trial, from 0.
        attempt: Number of the attempt of this trial, from 1.
        config: Configuration of the trial, by name of the hyperparameter.
        attributes: Values other than metrics to keep with the trial, however it ends: add yours by name.
        rank: Number of this worker within the trial, from 0; 0 if the trial runs on one worker.
        world_size: Number of workers that run the trial.

    Example:
        >>> def train(lr, reporter):
        ...     state = reporter.restore() or {"step": 0, "weight": 0.0}
        ...     for step in range(state["step"] + 1, reporter.budget + 1):
        ...         state = {"step": step, "weight": state["weight"] + lr}
        ...         reporter.checkpoint(state)
        ...         reporter.report(weight=state["weight"], step=step)
        >>> lagom(train, {"lr": [0.1, 0.2]}, optimizer="grid", direction="max").best_config
        {'lr': 0.2}
    """

    def __init__(self, budget: int = 1, *, store: CheckpointStore | None = None) -> None:
        self._budget = self._limit = budget
        self._pauses = False  # whether the attempt pauses at the limit
        self._is_training = False  # whether the trial is not one of a search, but a training outside of it
        self._was_budget_read = self._was_grant_read = False
        self._on_pause: OnPause | None = None
        self.trial = 0
        self.attempt = 1
        self.config: dict[str, Any] = {}
        self.attributes: dict[str, Any] = {}
        self._cut_at: int | None = None
        self._is_paused = False
        self.rank, self.world_size = rank_and_ranks()
        self._directory = self._working_directory = ""
        self._saves = Saves(store or CheckpointStore(None), None, None, 0, 1)
        self._sender: Sender | None = None
        self._step: int | None = None
        self._objective: str | None = None
        self._is_search = False  # without a driver, nothing is optimized
        self._milestones: tuple[int, ...] = ()
        self._restored = self._restored_nothing = False
        self._names: set[str] = set()

    def _begin(self, assign: Assign, store: CheckpointStore, sender: Sender) -> None:
        """Begin the first attempt in this process, or the next one of the same trial."""
        self.attempt = assign.attempt
        self._pauses = assign.budget < self._budget
        self._limit = UNBOUNDED if assign.open_ended and not self._was_budget_read else assign.budget
        self._objective = assign.objective or self._objective
        self._milestones = assign.milestones
        self._saves = Saves(store, assign.checkpoint, sender, assign.trial, assign.attempt, assign.older)
        self._sender = sender

    def __dir__(self) -> list[str]:
        """Return the attributes without those of :data:`_ELSEWHERE`, so that nothing suggests them."""
        return [name for name in super().__dir__() if name not in itertools.chain(*_ELSEWHERE.values())]

    def __repr__(self) -> str:
        step = "" if self._step is None else f", step={self._step}"
        return f"Reporter(trial={self.trial}, attempt={self.attempt}, budget={self._budget}{step})"

    @property
    def budget(self) -> int:
        """Steps of a full training: train up to this step.

        A search may pause or stop the trial earlier, in a report. A report past the budget ends the function. If
        neither ``max_budget`` is given nor the function reads this, it may train to its own end.
        """
        self._was_budget_read = True
        if not self._pauses:
            self._limit = self._budget
        return self._budget

    @budget.setter
    def budget(self, steps: int) -> None:
        self._budget = self._limit = steps

    def _grant(self) -> int:
        """Return the step up to which this attempt may train, for a function that cannot be paused in a report."""
        self._was_budget_read = self._was_grant_read = True
        return min(self._limit, self._budget)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only worker whose reports, logs and return value are used."""
        return self.rank == 0

    @property
    def directory(self) -> Path:
        """Return the trial's own directory on this machine, for files of any kind. At first it is empty.

        Its files are kept in the run's directory when an attempt ends (see :meth:`Result.files`), and restored where
        the trial continues. All workers of the trial on a machine share it. For a reporter without a search it is
        temporary.

        Example:
            >>> _ = (reporter.directory / "notes.txt").write_text("flat after epoch 3")
            >>> [path.name for path in reporter.directory.iterdir()]
            ['notes.txt']
        """
        if not self._directory:
            self._directory = tempfile.mkdtemp(prefix="maggy_like-")
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        os.makedirs(self._directory, 0o700, exist_ok=True)
        return Path(self._directory)

    @property
    def device(self) -> torch.device:
        """Return the device on which this worker trains: its GPU, or the CPU if it has none."""
        from maggy_like.distributed import parallel

        return parallel.device()

    def prepare(self, *objects: Any, find_unused_parameters: bool = False) -> Any:
        """Prepare models, optimizers and data loaders for training on all workers of the trial.

        With one worker, models and batches are moved to the worker's device. On a CPU, the objects are returned
        unchanged. With several workers, gradients are averaged over the workers (DistributedDataParallel), and each
        worker receives its share of every batch. The batch size remains that of the whole batch, so the training takes
        the same steps with any number of workers.

        These rules apply to any number of workers:

        - Compute the loss from ``model(...)``, as a mean over the batch.
        - Pass the model tensors that a prepared loader yielded, or tensors computed from the batch that it yielded
          last. The worker's share of the batch is recognized by them.
        - A mean over only some samples (``ignore_index``, class weights) is exact only if all shares are equal. Use
          ``drop_last=True`` and a batch size that is divisible by the number of workers.
        - Compute gradients by ``loss.backward()``, once for each call of the model. Gradients of
          ``torch.autograd.grad`` are not averaged. To accumulate gradients, repeat both calls before one ``step()``.
        - Use every trained parameter in each step. If some are unused, pass ``find_unused_parameters=True``.
        - Load weights and optimizer states on all workers. If weights differ, an early ``backward()`` raises an error.
        - Replace layers before you call this. You may freeze and unfreeze parameters between steps, on all workers.
        - Batch normalization sees only the worker's share of a batch, which must have at least two samples. Use
          ``drop_last=True`` if the last batch may be small, or ``nn.SyncBatchNorm`` on GPUs. All workers use the
          running statistics of rank 0.
        - Divide sums over a prepared loader by the number of samples that it yielded, not by ``len(loader.dataset)``,
          which counts those of all workers. Give the number to :meth:`average` as the weight.
        - One worker may evaluate the model without the others, under ``torch.no_grad()``. All workers must iterate
          over a prepared loader.

        Attributes, ``state_dict()``, the names of all parts and pickles of the model are those of the original module,
        which is ``getattr(model, "module", model)``. ``no_sync()`` exists only with several workers.

        Args:
            *objects: Models, optimizers and data loaders of PyTorch, in any order, each as a separate argument. Other
                objects are returned unchanged.
            find_unused_parameters: If True, a step may leave out parameters of a model, at the price of a search for
                them in each step. Default False.

        Returns:
            The prepared objects in the same order, or the object itself if there is only one.

        Raises:
            ValueError: An object cannot be prepared, such as a loader that cannot be shared out. With several workers,
                the first step of an optimizer raises it if no prepared model has the optimizer's parameters.

        Example:
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> loader = torch.utils.data.DataLoader(torch.rand(8, 2), batch_size=4)
            >>> model, optimizer, loader = reporter.prepare(model, optimizer, loader)
        """
        from maggy_like.distributed import parallel

        return parallel.prepare(*objects, ranks=self.world_size, find_unused_parameters=find_unused_parameters)

    @property
    def is_stand_in(self) -> bool:
        """Whether this worker has no sample of its own in the last batch, and received a repeated one.

        This happens if a batch has fewer samples than the trial has workers. The repeated sample does not count in the
        gradients. Leave it out of your metrics too.
        """
        from maggy_like.distributed import loader

        return self.world_size > 1 and loader.is_stand_in()

    def average(self, weight: float = 1.0, /, **metrics: Any) -> dict[str, float]:
        """Return metrics averaged over the workers of the trial. All must call this, with the same names.

        Args:
            weight: Weight of this worker's metrics, such as its number of samples. Default: 1.
            **metrics: Numbers by name.

        Returns:
            The weighted means by name, equal on all workers.

        Raises:
            ReportError: A metric is not a number, or no metric is given.
            ValueError: The workers passed different names. All of them raise it.
            RuntimeError: A worker has returned without this call.

        Example:
            >>> reporter.average(128, loss=0.5)  # the mean over 128 rows of this worker
            {'loss': 0.5}
        """
        if not metrics:
            if isinstance(weight, Mapping):
                got = shortened(weight)
                raise ReportError(f"average() must have metrics by name, got {got}; use average(**metrics)")
            raise ReportError(f"average() must have a metric, got only {weight!r}; use average(weight, loss=...)")
        numbers = {name: as_number(f"average({name}=...)", value) for name, value in metrics.items()}
        if self.world_size == 1:
            return numbers
        from maggy_like.distributed import parallel

        return parallel.average(numbers, weight)

    def report(self, value: float | None = None, /, *unnamed: Any, step: int | None = None, **metrics: float) -> None:
        """Report metrics at a step.

        If the search pauses or stops the trial, or its budget is used up, the call ends the function. It does so with
        a ``BaseException``, so that ``except Exception`` does not catch it.

        Args:
            value: Value of the objective, if it needs no name.
            *unnamed: Not used. Name the step and all other metrics.
            step: Progress, such as the epoch. It must increase from call to call. Default: the last step plus 1.
                Required in the first report after :meth:`restore` returned a state.
            **metrics: Numbers, or tensors of one element, by name. The objective must be among them. In a run without
                a search, the first metric is the objective.

        Raises:
            ReportError: The step does not increase, a value is not a number, the objective is missing or given twice,
                or there are more than 10,000 different names.
            Exception: An earlier report could not be sent, for this reason.

        Example:
            >>> for epoch in range(1, reporter.budget + 1):
            ...     reporter.report(loss=1 / epoch, accuracy=1 - 1 / epoch, step=epoch)
        """
        if unnamed:
            name: Any = value
            one = f"{name}={name}" if isinstance(name, str) and name.isidentifier() else "loss"
            raise ReportError(TOO_MANY.format(", ".join(map(shortened, (value, *unnamed))), one=one))
        sender = self._sender
        if sender is not None:
            if sender.fault is not None:
                raise sender.fault
            if sender.stop.must_ask and not sender.stop.passes():
                sender.stop.tell()
        last = self._step
        if step is None:
            if last is None and self._restored:
                raise ReportError("step must be given in the first report after restore(); use report(..., step=step)")
            step = (last or 0) + 1
        if type(step) is not int or not -MAX_STEP <= step <= MAX_STEP:
            step = as_step(step)
        if last is not None:
            if step <= last:
                raise ReportError(NOT_AFTER.format(step=step, last=last))
            if last >= self._limit:
                self._end_budget(step)
        elif step <= 1 and not self._restored and self._saves.was_given:
            self._saves.tell_unused("begin with state = reporter.restore()")
        if value is not None:
            objective = self._objective or "value"
            if objective in metrics:
                raise ReportError(GIVEN_TWICE.format(objective, shortened(value), shortened(metrics[objective])))
            metrics = {objective: value, **metrics}
        for name, number in metrics.items():
            if type(number) is not float:
                metrics[name] = as_number(f"report({name}=...)", number)
            if name not in self._names:
                self._admit(name)
        if self._objective not in metrics:
            self._objective = pick_objective(metrics, self._objective, is_search=self._is_search)
        self._step = step
        if sender is not None:
            if sender.is_main:
                sender.buffer.append((step, metrics))
                if len(sender.buffer) * (len(metrics) + REPORT_COST) > ROOM:
                    sender.wait_for_room()
            if self._milestones and step >= self._milestones[0]:
                self._milestones = tuple(later for later in self._milestones if later > step)
                if sender.wait_for_verdict():
                    self._saves.reported(step)  # the report counts, and so does the state that was saved before it
                    sender.stop.tell()
            is_saved = self._saves.reported(step)
            if is_saved and self._is_pause(step):
                self._pause(waits=True)

    def _end_budget(self, step: int) -> NoReturn:
        """End the function by raising BudgetUsed: it has reported all steps granted before this one."""
        if self._pauses:  # no state belongs to the rung's step, so the next attempt cannot continue from here
            self._saves.drop_unreported()
            self._pause(waits=False)
        self._cut_at = self._cut_at or step
        steps = f"{self._budget} step{'s' * (self._budget != 1)}"
        raise BudgetUsed(
            f"step {step} was reported with a budget of {steps}, which ends the function; loop up to reporter.budget, "
            "or use Reporter(budget=N)"
        )

    def _is_pause(self, step: int) -> bool:
        """Return whether a saved step is one at which the attempt pauses. After the last step, the function returns."""
        return self._pauses and self._limit <= step < self._budget

    def _pause(self, *, waits: bool) -> None:
        """Pause the trial, and return if its next attempt continues here; raise BudgetUsed if it does not.

        If not ``waits``, the function cannot continue from here.
        """
        following = None
        if waits and self._on_pause is not None and not self._is_paused:
            following = self._on_pause(self)
        if following is None:
            self._is_paused = True
            raise BudgetUsed
        self._begin(*following)

    def _admit(self, name: str) -> None:
        """Register a new metric name; raise ReportError if it cannot be sent, or if there are too many."""
        check_name(name)
        if len(self._names) >= MAX_NAMES:
            raise ReportError(
                f"report() must have at most {MAX_NAMES} different names of metrics, got one more: {shortened(name)}; "
                "use the same names at each step, and pass a number that is part of a name as step= or as a value"
            )
        self._names.add(name)

    def log(self, *parts: object, **metrics: object) -> None:
        """Print a line to the display and to the trial's log file.

        Args:
            *parts: Objects to print, as in ``print``.
            **metrics: Not used. Report metrics.

        Raises:
            ReportError: A metric is given.

        Example:
            >>> reporter.log("epoch", 3, "took", 1.5, "s")
            epoch 3 took 1.5 s
        """
        if metrics:
            given = ", ".join(f"{name}={shortened(value)}" for name, value in metrics.items())
            named = ", ".join(f"{name}={name}" for name in metrics)
            raise ReportError(f"log() prints a line and takes no metrics, got {given}; use report({named}, step=step)")
        print(*parts, flush=True)

    def checkpoint(self, state: Any, *unnamed: Any, step: int | None = None) -> None:
        """Save a checkpoint of the training. The newest few and the best are kept.

        A retry of the trial, or its continuation with more budget, starts from the newest one. A checkpoint
        counts once its step is reported: save it just before the report, or after it with ``step``. It is saved
        completely or not at all.

        In a multi-worker trial, all workers must call this. Rank 0 writes the state. If the state has sharded tensors
        (FSDP), each worker writes its shards in the background, while the training continues. If that fails, the next
        :meth:`checkpoint`, the next :meth:`restore` or the end of the function raises the error on all workers.

        If the store refuses a state, for example because a disk is full, this call waits and tries again until the
        store accepts it. A sharded state is not tried again. The attempt ends and is retried.

        Args:
            state: Object that :meth:`restore` will return, such as weights, the optimizer's state and the step.
                Anything that cloudpickle can pickle, so also instances of classes that are defined in a notebook.
            *unnamed: Not used. Name the step.
            step: Step that was reported for this state, if you save after the report. Default: the step of the next
                report.

        If the trial is to be paused after the report of ``step``, the call ends the function, as a report does.

        Raises:
            ReportError: No report of ``step`` was made, the state cannot be pickled, or more than one is given.

        Example:
            >>> reporter.report(accuracy=0.9, step=3)
            >>> reporter.checkpoint(model.state_dict(), step=3)
        """
        if unnamed:
            given = ", ".join(map(shortened, (state, *unnamed)))
            raise ReportError(
                f"checkpoint() must have one state, got checkpoint({given}); use checkpoint(state), without a path, or "
                "checkpoint(state, step=step) after the report of the step"
            )
        if step is not None and (self._step is None or as_step(step) > self._step):
            reported = "there is none" if self._step is None else f"the last one is {self._step}"
            raise ReportError(
                f"checkpoint(step=...) must be a reported step, got {shortened(step)}, and {reported}; report the step "
                "first, or omit step to save before the report"
            )
        self._saves.save(state)
        if step is not None:
            self._saves.reported(step)
            if self._is_pause(step):
                self._pause(waits=True)

    def restore(self, into: Any = None) -> Any:
        """Return the newest checkpoint of this trial.

        If that checkpoint is damaged or missing, the one saved before it is returned, if there is one.

        Args:
            into: State to fill, for a state with sharded tensors (FSDP). It must have the same structure and the
                present sharding. The number of workers may differ from that at which the state was saved.

        Returns:
            The state, ``into`` if that was given, or None if the trial has no checkpoint.

        Raises:
            ReportError: The state is sharded and ``into`` is missing.

        Example:
            >>> state = reporter.restore() or {"epoch": 0}
            >>> for epoch in range(state["epoch"] + 1, reporter.budget + 1):
            ...     reporter.checkpoint({"epoch": epoch})
            ...     reporter.report(accuracy=1 - 1 / epoch, step=epoch)
        """
        if isinstance(into, str | PathLike):
            raise ReportError(
                f"restore() takes no path, got {shortened(into)}; use restore(), which returns the trial's newest state"
            )
        state = self._saves.restore(into)
        self._restored = self._restored or state is not None
        self._restored_nothing = state is None
        return state


for _use, _names in _ELSEWHERE.items():
    for _name in _names:
        setattr(Reporter, _name, _Elsewhere(f"'Reporter' object has no attribute {_name!r}; use {_use}"))
