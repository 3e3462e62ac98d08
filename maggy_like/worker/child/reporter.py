"""The reporter, with which a training function reports, logs, saves and restores.

A report costs an append to a list. A service thread sends the list each interval; only at a
milestone does the trial wait for the driver's verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from maggy_like.protocol.messages import MAX_NAMES, MAX_STEP, UNBOUNDED, Assign
from maggy_like.protocol.torchrun import rank_and_ranks
from maggy_like.protocol.values import ReportError, shortened
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.saves import Saves
from maggy_like.worker.child.sender import REPORT_COST, ROOM, Sender, as_number, as_step, check_name, pick_objective

if TYPE_CHECKING:
    import torch


class BudgetUsed(BaseException):
    """The trial reported past its budget. No ``Exception``: a bare ``except Exception`` must not eat it."""


BROADCAST = "'broadcast' of the first Maggy is called report here: reporter.report(accuracy=..., step=...)"

TOO_MANY = (
    "report({}) has more than one value without a name; name the step, and metrics where there are several: "
    "report(loss, step=step), report(loss=..., accuracy=..., step=step)"
)

NOT_AFTER = (
    "step={} does not come after step={}, reported before; report all metrics of a step in one call, and average those "
    "of batches over the epoch: report(loss=loss, accuracy=accuracy, step=epoch)"
)


class Reporter:
    """Reports to the driver, and saves and restores states. Alone (``Reporter(budget=10)``) it just keeps count.

    Args:
        budget: Steps granted: train up to this step, then return.
        store: Where checkpoints go; without one they are kept in memory.

    Attributes:
        trial: Number of the trial.
        attempt: Which run of the trial this is, from 1.
        config: The configuration.
        cut_at: The step past the budget whose report has ended the function, whatever it has made of that; else None.
        rank: Number of this worker among those that run the trial together; 0 where it is alone.
        world_size: How many they are.

    Example:
        >>> def train(lr, reporter):
        ...     state = reporter.restore() or {"step": 0, "weight": 0.0}
        ...     for step in range(state["step"] + 1, reporter.budget + 1):
        ...         state = {"step": step, "weight": state["weight"] + lr}
        ...         reporter.checkpoint(state)
        ...         reporter.report(weight=state["weight"], step=step)
    """

    def __init__(self, budget: int = 1, *, store: CheckpointStore | None = None) -> None:
        self._budget = self._limit = budget
        self.trial = 0
        self.attempt = 1
        self.config: dict[str, Any] = {}
        self.cut_at: int | None = None
        self.rank, self.world_size = rank_and_ranks()
        self._saves = Saves(store or CheckpointStore(None), None, None, 0, 1)
        self._sender: Sender | None = None
        self._step: int | None = None
        self._objective: str | None = None
        self._is_search = False  # alone, nothing is optimised
        self._milestones: tuple[int, ...] = ()
        self._restored = False
        self._names: set[str] = set()

    @classmethod
    def for_trial(cls, assign: Assign, store: CheckpointStore, sender: Sender) -> Reporter:
        """The reporter of one attempt in a child."""
        reporter = cls(assign.budget)
        if assign.open_ended:
            reporter._limit = UNBOUNDED
        reporter.trial = assign.trial
        reporter.attempt = assign.attempt
        reporter.config = assign.config
        reporter.rank = assign.rank_info.rank if assign.rank_info is not None else 0
        reporter.world_size = assign.rank_info.world_size if assign.rank_info is not None else 1
        reporter._objective = assign.objective
        reporter._is_search = assign.is_search
        reporter._milestones = assign.milestones
        reporter._saves = Saves(store, assign.checkpoint, sender, assign.trial, assign.attempt, assign.older)
        reporter._sender = sender
        return reporter

    @property
    def budget(self) -> int:
        """Steps granted: train up to this step, then return.

        A report past the budget ends the function. If neither ``max_budget`` is given nor the function reads this, it
        may train to its own end.
        """
        self._limit = self._budget
        return self._budget

    @budget.setter
    def budget(self, steps: int) -> None:
        self._budget = self._limit = steps

    @property
    def objective(self) -> str | None:
        """Name of the metric that is optimised; None while it is not known."""
        return self._objective

    @property
    def is_under_way(self) -> bool:
        """Whether the trial has reported, in this attempt or before the state that it was restored from."""
        return self._step is not None or self._restored

    @property
    def is_stopped(self) -> bool:
        """Whether the function was told to stop, whatever it has made of that."""
        return self._sender is not None and self._sender.stop.is_told

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, whose reports, logs and return value stand for all."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this worker trains: its own GPU, or the CPU."""
        from maggy_like.distributed import parallel

        return parallel.device()

    def prepare(self, *objects: Any) -> Any:
        """Make a model, its optimizer and its loaders ready to be trained by all workers of the trial together.

        With one worker they are moved to its device, and that is all; on a CPU the same objects come back. With
        several, the model's gradients are averaged over the workers (DistributedDataParallel), and a loader
        gives each worker its share of every batch. The batch size stays that of the whole batch, so the
        training is the same, step by step, however many workers there are.

        What holds for any number of workers:

        - Compute the loss from ``model(...)``, as a mean over the batch. Attributes, ``state_dict()`` and pickles of
          the model are the plain module's; the module itself is ``getattr(model, "module", model)``.
        - Give the model the tensors that a loader yielded, also of batches that are kept or drawn ahead, or what is
          made of the batch that the loop has just yielded: by that a worker's share of the batch is known. A mean over
          a part of the samples (``ignore_index``, weights of classes) is that of the batch only where shares are
          alike: ``drop_last=True``, a batch size that divides.
        - Gradients come from ``loss.backward()``, one for each call of the model; those that ``torch.autograd.grad``
          gives are this worker's own. Accumulate with several calls of both and one ``step()``; ``no_sync()``, which
          saves some of the communication, is there with several workers alone.
        - A step uses all of the model's trained parameters; give a model that does not as
          ``maggy_like.distributed.ddp.DataParallel(model, find_unused_parameters=True)``.
        - Parameters may be frozen and unfrozen between steps, by all workers; a layer is replaced before this call.
        - Batch normalisation sees a worker's share of the batch, and needs two samples in it: use ``drop_last=True``
          where the last batch may be small, or on GPUs ``nn.SyncBatchNorm``. Its running statistics are rank 0's
          on all of them.
        - A worker may evaluate the model alone, under ``torch.no_grad()``. A prepared loader is iterated by all.

        Args:
            *objects: Models, optimizers and data loaders of torch, in any order, each by itself and not in a list;
                others are given back as they are.

        Returns:
            The prepared objects in the same order; a single one alone.

        Raises:
            ValueError: An object cannot be prepared, such as a loader that cannot be shared out; the message says why.
                The first step of a prepared optimizer raises it, with several workers, if no prepared model has the
                parameters that it trains.

        Example:
            >>> model, optimizer, loader = reporter.prepare(model, optimizer, loader)
        """
        from maggy_like.distributed import parallel

        return parallel.prepare(*objects, ranks=self.world_size)

    @property
    def is_stand_in(self) -> bool:
        """Whether the batch that a prepared loader yielded last has no share of this worker, and repeats a sample.

        So it is where a batch has fewer samples than there are workers: the sample has no weight in the gradients,
        and should have none in the metrics.
        """
        from maggy_like.distributed import loader

        return self.world_size > 1 and loader.is_stand_in()

    def average(self, weight: float = 1.0, /, **metrics: Any) -> dict[str, float]:
        """Metrics averaged over the workers of the trial; all of them must call this.

        Args:
            weight: How much this worker's metrics count, such as the number of samples that they are of.
            **metrics: Numbers by name.

        Raises:
            ReportError: A metric is no number, or there is none, as in ``average(0.5)``.

        Example:
            >>> reporter.report(**reporter.average(len(shard), loss=loss), step=step)
        """
        if not metrics:
            if isinstance(weight, Mapping):
                raise ReportError(f"average() takes metrics by name, got {shortened(weight)}; use average(**metrics)")
            raise ReportError(f"average({weight!r}) has a weight and nothing to average; name it: average(loss=...)")
        numbers = {name: as_number(f"average({name}=...)", value) for name, value in metrics.items()}
        if self.world_size == 1:
            return numbers
        from maggy_like.distributed import parallel

        return parallel.average(numbers, weight)

    def report(self, value: float | None = None, /, *unnamed: Any, step: int | None = None, **metrics: float) -> None:
        """Report metrics at a step.

        Args:
            value: The objective, if it needs no name.
            *unnamed: Nothing: the step and further metrics are named.
            step: Progress, rising from call to call; one past the last if not given. After :meth:`restore` has given
                a state, the first report must name it.
            **metrics: Numbers by name (tensors of one element too); the objective among them. Where nothing is
                searched, the one that is named first stands for it.

        Raises:
            ReportError: The step does not rise, a value is no number, the objective is missing, or there are more
                than 10,000 different names.
            Exception: Whatever kept an earlier report from being sent.
        """
        if unnamed:
            raise ReportError(TOO_MANY.format(", ".join(map(shortened, (value, *unnamed)))))
        sender = self._sender
        if sender is not None:
            if sender.fault is not None:
                raise sender.fault
            if sender.stop.must_ask and not sender.stop.passes():
                sender.stop.tell()
        last = self._step
        if step is None:
            if last is None and self._restored:
                raise ReportError("after restore() the step is not known; name it: report(..., step=step)")
            step = (last or 0) + 1
        if type(step) is not int or not -MAX_STEP <= step <= MAX_STEP:
            step = as_step(step)
        if last is not None:
            if step <= last:
                raise ReportError(NOT_AFTER.format(step, last))
            if last >= self._limit:
                self.cut_at = self.cut_at or step
                raise BudgetUsed
        if value is not None:
            metrics[self._objective or "value"] = value
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
            self._saves.reported(step)

    def _admit(self, name: str) -> None:
        """Take in a metric's name that was not reported before.

        Raises:
            ReportError: It cannot be sent, or there are too many.
        """
        check_name(name)
        if len(self._names) >= MAX_NAMES:
            raise ReportError(
                f"report() was given {MAX_NAMES} different names of metrics before {shortened(name)}; give the same "
                "names at each step: a number that is part of a name belongs into step= or into a value"
            )
        self._names.add(name)

    @property
    def broadcast(self) -> NoReturn:
        """What the first Maggy called :meth:`report`.

        Raises:
            AttributeError: Always. (A ``__getattr__`` for this would make each report a third slower.)
        """
        raise AttributeError(BROADCAST)

    def log(self, *parts: object) -> None:
        """Print a line; it stands in the display and in the trial's log file."""
        print(*parts, flush=True)

    def checkpoint(self, state: Any, *, step: int | None = None) -> None:
        """Save ``state``, whole or not at all; the newest few and the best are kept.

        It may be anything that cloudpickle takes, so objects of a notebook's own classes too.

        The trial goes on from it once the next report has come, or the function has returned:
        a state whose step was never measured would leave a hole in the curve.

        Where several workers run the trial, all of them call this. Rank 0 writes the state; one that holds
        sharded tensors (FSDP) is written by all, each its shards, while the training goes on. If that fails, the
        next ``checkpoint`` or :meth:`restore`, or the end of the function, raises it on all of them.

        A store that refuses (a full disk, a server that is away) is no fault of the trial: this call waits and tries
        again until the store serves. Where all write, the attempt ends instead, and is followed by another.

        Args:
            state: What :meth:`restore` shall give back: weights, optimizer state, the step.
            step: The reported step whose value this state has, where it is saved after its report. By default that
                is the step of the next report.

        Raises:
            ReportError: No report of ``step`` has been made, or the state cannot be pickled.

        Example:
            >>> reporter.report(accuracy=accuracy, step=epoch)
            >>> reporter.checkpoint(model.state_dict(), step=epoch)
        """
        if step is not None and (self._step is None or as_step(step) > self._step):
            reported = "none was reported" if self._step is None else f"the last one reported was {self._step}"
            raise ReportError(
                f"checkpoint(step={shortened(step)}) is for a step that was reported, and {reported}; report it "
                "first, or leave step out to save before the report"
            )
        self._saves.save(state)
        if step is not None:
            self._saves.reported(step)

    def restore(self, into: Any = None) -> Any:
        """The newest saved state of this trial, or None if there is none.

        In the place of a state that is damaged or gone comes the one that was saved before it, if that is there.

        Args:
            into: For a sharded state: one of the same structure with the present sharding, on any number of
                workers. It is filled in place and returned.
        """
        state = self._saves.restore(into)
        self._restored = self._restored or state is not None
        return state

    def settle(self) -> None:
        """Wait until all that was saved is written. Called by the runtime as the function returns."""
        self._saves.settle()

    def keep(self, returned: Any) -> None:
        """Save what the function returned, if that is no training's. Called by the runtime."""
        self._saves.keep(returned)

    def finish(self) -> None:
        """Tell the driver of the newest saved state, if it does not know. Called by the runtime."""
        self._saves.finish(self._step or 0)

    def tidy(self) -> None:
        """Remove saved states that are of no use any more. Called by the runtime."""
        self._saves.tidy()
