"""A LightningModule in an Estimator: trained by Lightning's Trainer, on the Estimator's rows and ranks.

Lightning has two packages, ``lightning`` and ``pytorch_lightning``, whose classes do not mix. So each class here that
has to be one of Lightning's is joined with the one of the module's package.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import logging
import os
import re
import signal
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from maggy_like.callbacks.progress import Progress
from maggy_like.distributed import parallel
from maggy_like.distributed.ddp import DataParallel
from maggy_like.errors import ConfigError
from maggy_like.ml.columns import fractions_of
from maggy_like.ml.estimator.network import lightning_of, normalizes_batches, to_cpu, uncompiled
from maggy_like.ml.estimator.objective import Batch, decoded, inputs_of
from maggy_like.ml.estimator.plan import (
    Means,
    State,
    TrainingPlan,
    first_state,
    loader_of,
    loss_name,
    outcome,
    record,
    seed_epoch,
)
from maggy_like.worker.child.reporter import Reporter
from optimizers.checks import did_you_mean
from optimizers.samplers.silence import shared

_CHECKPOINT = "the checkpoint of the trial"
"""What Lightning gets as the path of the checkpoint that the trial saves and restores."""

_VALIDATION_LOSS = re.compile(r"(val|valid|validation)[_/]loss(_epoch)?|loss[_/](val|valid|validation)")
"""Names under which modules log the loss of the validation."""

_OWN = ("epoch", "loss")
"""Columns of the history that are not the module's."""

PREFIX = "logged_"
"""Begins the name of a metric that would replace such a column."""

_OF_PARAMS = {
    "accumulate_grad_batches": "use accumulateGradBatches",
    "check_val_every_n_epoch": "omit it, because each epoch is reported with its validation",
    "devices": "use workers",
    "enable_checkpointing": "omit it, because each epoch is saved",
    "fast_dev_run": "omit it, because fit tries the module on a few rows before it trains",
    "gradient_clip_val": "use gradientClipVal",
    "max_epochs": "use epochs",
    "num_nodes": "use workers",
    "precision": "use precision",
}
"""Arguments of the Trainer that the Estimator sets, and the remedy."""

_NOT_TRIED = ("accelerator", "callbacks", "logger", "profiler", "strategy")
"""Arguments that a step before the training is taken without: it writes nothing, and is on one CPU."""

_PRECISIONS = {"bf16": "bf16-mixed", "fp16": "16-mixed"}

_BANNERS = (
    "lightning.fabric.utilities.rank_zero",
    "lightning.pytorch.utilities.rank_zero",
    "lightning_fabric.utilities.rank_zero",
    "pytorch_lightning.utilities.rank_zero",
)
"""Loggers of what Lightning says about the machine, and about calls that are made here."""

_UNHELPFUL = (
    r".*no logger configured",  # the metrics are reported
    r".*module\(s\) in eval mode at the start of training",  # they are frozen on purpose
    r".*isinstance\(treespec, LeafSpec\)",
    r".*does not have many workers",
    r".*Checkpoint directory .* exists and is not empty",
)
"""Warnings of Lightning that a user of an Estimator cannot do anything about."""


def train_module(plan: TrainingPlan, model: nn.Module, reporter: Reporter, sample: Batch | None = None) -> State:
    """Train a LightningModule as its Trainer does, and return the same as for a plain network.

    With ``sample``, some rows, only one step is taken with them on the CPU, and nothing is written.
    """
    package, module = _package_of(model), uncompiled(model)
    device = reporter.device if sample is None else torch.device("cpu")
    frozen = plan.frozen(module)
    for part in frozen:
        part.eval()  # which Lightning does not change
    progress = Progress(reporter, save_every=1)
    state: State = progress.restored or first_state()
    if state["ended"] or not progress.left:
        return outcome(state)
    if reporter.world_size > 1:
        parallel.ensure_process_group()
    if sample is None:
        rows, held = _loaded(plan, module, frozen, reporter)
    else:
        rows = _Sample(plan, module, sample, plan.batches)
        held = _Sample(plan, module, sample, 1) if plan.data.validation else None
    files = _joined(_Checkpoints, package.plugins.io.TorchCheckpointIO)(state.get("checkpoint"), sample is None)
    epochs = _joined(_Epochs, package.callbacks.Checkpoint)(plan, reporter, progress, state, rows, held, files)
    with tempfile.TemporaryDirectory(prefix="maggy_like-") as directory, _quiet(), _interruptible():
        given = _arguments(package, plan, reporter, device, is_sample=sample is not None)
        given["callbacks"] = [*_listed(given.get("callbacks")), epochs]
        given["plugins"] = [*_listed(given.get("plugins")), files]
        trainer = package.Trainer(**{"default_root_dir": directory, **given})
        trainer.fit(module, rows, held, ckpt_path=_CHECKPOINT if state["epoch"] else None)
    progress.finish()
    return outcome(state)


def _loaded(
    plan: TrainingPlan, module: nn.Module, frozen: Sequence[nn.Module], reporter: Reporter
) -> tuple[_Batches, _Batches | None]:
    """Load this rank's share of the rows to train on, and of those to validate on if there are any."""
    # A row that stands in for none would count in the module's metrics.
    least = max(2 if normalizes_batches(module, frozen) else 0, int(reporter.world_size > 1))
    load = partial(loader_of, plan, fractions_of(module), least_share=least)
    rows = reporter.prepare(load(plan.data.train, shuffle=True, drop_last=plan.drop_last))
    train = _Batches(plan, module, rows, reporter.device)
    if not plan.data.validation:
        return train, None
    return train, _Batches(plan, module, reporter.prepare(load(plan.data.validation, shuffle=False)), reporter.device)


class DryRun:
    """A training of a module on a few rows in this process, before workers start. It must not fail in any step."""

    def __init__(self, plan: TrainingPlan, network: nn.Module) -> None:
        self._plan = plan
        self.network = uncompiled(network)
        self.network._compiled_call_impl = None  # with which a LightningModule cannot be pickled

    def train(self) -> DryRun:
        """Do nothing: both the training and the validation are tried."""
        return self

    eval = train

    def __call__(self, batch: Batch) -> None:
        train_module(self._plan, self._plan.network(), Reporter(budget=self._plan.epochs), batch)


def check_trainer_params(model: Any, given: Mapping[str, Any]) -> None:
    """Check that there is a Trainer, and that it takes the arguments."""
    package = lightning_of(model)
    if package is None:
        if given and isinstance(model, nn.Module | type):
            raise ConfigError(
                "trainerParams must be used with a LightningModule, which Lightning's Trainer trains; omit them"
            )
        return
    known = [*inspect.signature(import_module(package).Trainer).parameters]
    for name in given:
        if name in _OF_PARAMS:
            raise ConfigError(f"trainerParams must not have {name!r}, which the Estimator sets; {_OF_PARAMS[name]}")
        if name not in known:
            others = ", ".join(it for it in known if it not in _OF_PARAMS)
            raise ConfigError(
                f"trainerParams must have arguments of {package}.Trainer, got {name!r}{did_you_mean(name, known)}; use "
                f"some of {others}"
            )


def failed_in(error: BaseException, kind: type) -> str:
    """Return the method of a module of type ``kind`` in which an exception was raised, or the module's name."""
    trace = error.__traceback__
    while trace is not None:
        if isinstance(trace.tb_frame.f_locals.get("self"), kind):
            name = trace.tb_frame.f_code.co_name
            if hasattr(kind, name):
                return name
        trace = trace.tb_next
    return kind.__name__


def _package_of(model: nn.Module) -> Any:
    """Import the package of Lightning that the module comes from."""
    name = lightning_of(model)
    assert name is not None
    return import_module(name)


def _joined(mixin: type, base: type) -> Any:
    """Return a class of ours that is also one of Lightning's."""
    return type(mixin.__name__, (mixin, base), {})


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _arguments(
    package: Any, plan: TrainingPlan, reporter: Reporter, device: torch.device, *, is_sample: bool
) -> dict[str, Any]:
    """Return the Trainer's arguments: what Params say, and ``trainerParams``."""
    given = {name: copy.deepcopy(it) if name == "callbacks" else it for name, it in plan.trainer_params.items()}
    made: dict[str, Any] = {
        "max_epochs": plan.epochs,
        "accelerator": "gpu" if device.type == "cuda" else "cpu",
        "devices": [device.index] if device.type == "cuda" else 1,
        "gradient_clip_val": plan.clip,
        "accumulate_grad_batches": plan.accumulate,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    if is_sample:
        kept = {name: it for name, it in given.items() if name not in _NOT_TRIED}
        if given.get("logger"):
            kept["logger"] = import_module(f"{package.__name__}.loggers.logger").DummyLogger()
        return made | kept
    if plan.precision in _PRECISIONS:
        made["precision"] = _PRECISIONS[plan.precision]
    if reporter.world_size > 1 and "strategy" in given:
        local = int(os.environ["LOCAL_WORLD_SIZE"])  # as under torchrun
        made |= {"devices": local, "num_nodes": reporter.world_size // local}
    elif reporter.world_size > 1:
        made |= {"num_nodes": reporter.world_size}
        made |= {"strategy": _joined(_Ranks, package.strategies.DDPStrategy)()}
    return made | given


class _Batches:
    """Batches of rows as a module's steps take them: tuples of the inputs, the labels, and the weight if there is one.

    ``rows`` is the number of rows of the batch that was yielded last.
    """

    def __init__(self, plan: TrainingPlan, module: nn.Module, loader: Any, device: torch.device) -> None:
        self._plan, self._module, self._loader, self._device = plan, module, loader, device
        self.rows = 0

    def __len__(self) -> int:
        return len(self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, before its first batch is drawn."""
        self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batch in self._loader:
            self.rows = len(next(iter(batch.values())))
            yield self._given(decoded(batch, self._plan.decode, self._device))

    def _given(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(inputs_of(self._module, batch, self._plan.columns, self._plan.as_fractions))


class _Sample(_Batches):
    """The same rows as each of ``count`` batches."""

    def __init__(self, plan: TrainingPlan, module: nn.Module, batch: Batch, count: int) -> None:
        super().__init__(plan, module, [batch] * count, torch.device("cpu"))
        self.rows = len(next(iter(batch.values())))

    def set_epoch(self, epoch: int) -> None:
        pass

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return map(self._given, self._loader)


class _Checkpoints:
    """Keeps the checkpoint of the trial in memory. All others, such as those of a ModelCheckpoint, are files.

    Joined with a CheckpointIO of Lightning.
    """

    def __init__(self, checkpoint: dict[str, Any] | None, writes: bool) -> None:
        self.checkpoint = checkpoint  # the newest; None on all ranks but 0
        self._writes = writes

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if path == _CHECKPOINT:
            self.checkpoint = checkpoint
        elif self._writes:
            super().save_checkpoint(checkpoint, path, storage_options)  # type: ignore[misc]  # of the other base

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == _CHECKPOINT:
            return self.checkpoint
        return super().load_checkpoint(path, *args, **kwargs)  # type: ignore[misc]


class _Ranks:
    """The ranks of the trial. Each is its only device, and gradients are weighted by the rows of its share.

    Joined with Lightning's DDPStrategy. Modules that optimize manually have Lightning's own model, because they may
    call ``backward`` several times for one forward.
    """

    lightning_module: Any

    @property
    def root_device(self) -> torch.device:
        return parallel.device()

    def _setup_model(self, model: nn.Module) -> nn.Module:
        if not self.lightning_module.automatic_optimization:
            return super()._setup_model(model)  # type: ignore[misc, no-any-return]
        device = self.root_device
        return DataParallel(model, device_ids=None if device.type == "cpu" else [device.index])


class _Epochs:
    """Reports and saves each epoch, keeps the best weights, and ends the training early.

    Joined with Lightning's Checkpoint, whose hooks are called after those of the module and of all other callbacks.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        reporter: Reporter,
        progress: Progress,
        state: State,
        rows: _Batches,
        held: _Batches | None,
        files: _Checkpoints,
    ) -> None:
        self._plan, self._reporter, self._progress, self._state = plan, reporter, progress, state
        self._rows, self._held, self._files = rows, held, files
        self._train = self._validation = Means()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Go behind the module's own callbacks, so that the checkpoint has their states after the epoch."""
        trainer.callbacks = [*(it for it in trainer.callbacks if it is not self), self]

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Advance the schedules that Lightning advances after the end of an epoch, when its checkpoint was saved."""
        logged = self._state.get("logged", {})
        for it in trainer.lr_scheduler_configs:
            is_due = it.interval == "epoch" and self._state["epoch"] % it.frequency == 0
            if it.reduce_on_plateau and is_due and it.monitor in logged:
                pl_module.lr_scheduler_step(it.scheduler, logged[it.monitor])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch + 1
        self._rows.set_epoch(epoch)
        seed_epoch(self._plan, epoch, self._reporter.rank)
        self._train = Means()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (loss := _loss_of(outputs)) is not None:
            # Lightning divides it for the mean over the batches of a step.
            whole = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._train.add(self._rows.rows, {"loss": loss.detach() * whole})
        if isinstance(self._rows, _Sample):
            trainer.should_stop = True

    def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._validation = Means()

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._held is not None:
            loss = _loss_of(outputs)
            self._validation.add(self._held.rows, {} if loss is None else {"loss": loss.detach()})

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        own = self._losses(logged, type(pl_module).__name__)
        others = {name: value for name, value in logged.items() if name != "validation_loss" or name not in own}
        metrics = own | {f"{PREFIX * (name in _OWN)}{name}": value for name, value in others.items()}
        trainer.save_checkpoint(_CHECKPOINT, weights_only=False)  # all ranks
        checkpoint = self._files.checkpoint
        network = None
        if checkpoint is not None:
            network = checkpoint["state_dict"] = to_cpu(checkpoint["state_dict"])
        record(self._state, self._plan, metrics, network)
        self._state |= {"checkpoint": checkpoint, "logged": logged}
        if self._reporter.is_main and not isinstance(self._rows, _Sample):
            for callback in self._plan.callbacks:
                callback(self._state["epoch"], dict(self._state["history"][-1]), pl_module)
        counted = loss_name(self._plan)
        # The first metric is what counts where nothing is searched, and a step is no metric of a report.
        reported = {f"{PREFIX * (name == 'step')}{name}": it for name, it in ({counted: 0.0} | metrics).items()}
        continues = self._progress.take(self._state["epoch"], reported, lambda: self._state)
        if self._state["ended"] or not continues:
            trainer.should_stop = True

    def _losses(self, logged: Mapping[str, float], name: str) -> dict[str, float]:
        """Return the mean losses over the rows of all ranks; all ranks must call this.

        ``loss`` is that of the training. The validation's is the logged one or, without one, what its step returns.
        """
        found = {**self._train.over_ranks(self._reporter)}
        if self._held is not None:
            at = next((it for it in logged if _VALIDATION_LOSS.fullmatch(it)), None)
            means = self._validation.over_ranks(self._reporter, {} if at is None else {"loss": logged[at]})
            found |= {f"validation_{name}": value for name, value in means.items()}
        counted = loss_name(self._plan)
        if counted not in found:
            step = "validation_step" if self._held is not None else "training_step"
            other = "log val_loss" if self._held is not None else "set rows apart to validate on"
            raise ConfigError(f"{step} of {name} must return the loss, got none; return it, or {other}")
        return found


def _loss_of(outputs: Any) -> Tensor | None:
    """Return the loss in what a step has returned."""
    value = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return value if isinstance(value, Tensor) and value.numel() == 1 else None


@shared  # since a CrossValidator fits in several threads
@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Lightning's banners out of the log, and warnings that a user of an Estimator cannot do anything about."""
    loggers = [logging.getLogger(name) for name in _BANNERS]
    levels = [it.level for it in loggers]
    with warnings.catch_warnings():
        for message in _UNHELPFUL:
            warnings.filterwarnings("ignore", message)
        for it in loggers:
            it.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for it, level in zip(loggers, levels, strict=True):
                it.setLevel(level)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt. Lightning ignores further ones then, and exits."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise KeyboardInterrupt from None
        raise
