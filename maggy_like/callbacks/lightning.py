"""The callback of Lightning."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.callbacks.progress import Progress
from maggy_like.protocol.values import ReportError
from optimizers.checks import explains_init

require("lightning", "LightningReport")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402  # the error above names the extra

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


@explains_init
class LightningReport(Callback):
    """Report each epoch of Lightning's ``Trainer``, with the metrics that the module logs.

    The checkpoint is ``{"step": epochs, "checkpoint": bytes}``. The bytes are a checkpoint of Lightning (weights,
    optimizers, schedules, loops, callbacks). Load it by ``torch.load(io.BytesIO(state["checkpoint"]))``.

    A trial that continues from another trial's state (``PBT``) trains with the hyperparameters that its own
    ``configure_optimizers`` sets. A schedule continues from the state, relative to the trial's own learning rate, but
    keeps the saved parameters of the schedule itself, such as ``gamma``.

    The report of an epoch includes what the module logs in ``on_train_epoch_end``. Validate after every epoch.
    Otherwise Lightning keeps the metrics of the last validation, and they are reported again.

    In a multi-worker trial, every rank needs this callback. Rank 0 reports, and all ranks stop after the same epoch.
    Log with ``sync_dist=True`` to average a metric over the ranks.

    Args:
        reporter: Reporter of the trial.
        save_every: Number of epochs between checkpoints. Default: 1.

    Attributes:
        ckpt_path: Path of a file with the checkpoint, or None.

    Raises:
        ReportError: An argument is invalid, no metric was logged, the trainer does not train with all workers of the
            trial, or the strategy does not write a checkpoint as one file.

    Example:
        >>> def train(lr, reporter):
        ...     report = LightningReport(reporter)
        ...     trainer = Trainer(max_epochs=reporter.budget, callbacks=[report], enable_checkpointing=False)
        ...     trainer.fit(Module(lr), loader, held_out, ckpt_path=report.ckpt_path)
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        self._progress = Progress(reporter, save_every)
        self._reporter = reporter
        self.ckpt_path: str | None = None
        self._max_steps: int | None = None  # while the trainer has none
        self._configured: list[list[dict[str, Any]]] = []  # the hyperparameters of each optimizer's groups
        if self._progress.restored is not None:
            path = Path(tempfile.mkdtemp(prefix="maggy_like-"), "restored.ckpt")
            path.write_bytes(self._progress.restored["checkpoint"])
            self.ckpt_path = str(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from the epoch at which the training starts. Called by Lightning."""
        self._remove_restored()
        self._limit_steps(trainer)
        if self._progress.parent is not None:
            self._configure(trainer)
        self._progress.begin(trainer.current_epoch, "ckpt_path=report.ckpt_path to trainer.fit")
        if not self._progress.left:
            trainer.should_stop = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Arrange that an epoch is reported after all hooks and schedules of its end. Called by Lightning."""
        if self._reporter.world_size not in (1, trainer.world_size):
            raise ReportError(
                f"the trainer must train with all {self._reporter.world_size} workers of the trial, got one with "
                f"{trainer.world_size}; remove devices= and num_nodes= from Trainer(...)"
            )
        for optimizer in trainer.optimizers:
            for group in optimizer.param_groups:
                group.setdefault("initial_lr", group.get("lr"))  # as most schedules do, but not ReduceLROnPlateau
        self._configured = [
            [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
            for optimizer in trainer.optimizers  # as configured, since a checkpoint is loaded into them later
        ]
        if self.ckpt_path is not None:
            # Lightning would train the saved epoch again when max_steps is set, even if that has ended.
            self._max_steps, trainer.fit_loop.epoch_loop.max_steps = trainer.max_steps, -1
        own = trainer.fit_loop.on_advance_end

        def then_report() -> None:
            own()
            self._report(trainer)

        # Lightning calls no hook after EarlyStopping and ReduceLROnPlateau, whose states are saved, too.
        trainer.fit_loop.on_advance_end = then_report

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training function if the trial was stopped. Called by Lightning."""
        self._leave(trainer)
        self._progress.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the trainer as it was. Called by Lightning."""
        self._leave(trainer)

    def _leave(self, trainer: Trainer) -> None:
        self._limit_steps(trainer)
        vars(trainer.fit_loop).pop("on_advance_end", None)
        self._remove_restored()

    def _limit_steps(self, trainer: Trainer) -> None:
        """Put the trainer's ``max_steps`` back."""
        if self._max_steps is not None:
            trainer.fit_loop.epoch_loop.max_steps, self._max_steps = self._max_steps, None

    def _remove_restored(self) -> None:
        """Remove the file with the restored state once it is loaded or not needed."""
        if self.ckpt_path is not None:
            shutil.rmtree(Path(self.ckpt_path).parent, ignore_errors=True)

    def _configure(self, trainer: Trainer) -> None:
        """Give the optimizers, which continue from another trial's state, the configured hyperparameters again."""
        for optimizer, configured in zip(trainer.optimizers, self._configured, strict=True):
            for group, own in zip(optimizer.param_groups, configured, strict=True):
                scheduled = group["lr"] / group["initial_lr"] if group.get("initial_lr") else None
                group.update(own)
                if scheduled is not None and "initial_lr" in own:
                    group["lr"] = own["initial_lr"] * scheduled
        for config in trainer.lr_scheduler_configs:
            _start_from_configured(config.scheduler)

    def _report(self, trainer: Trainer) -> None:
        if not self._progress.take(trainer.current_epoch, trainer.callback_metrics, lambda: self._state(trainer)):
            trainer.should_stop = True

    def _state(self, trainer: Trainer) -> dict[str, Any]:
        """Return a checkpoint on rank 0; all ranks must call this."""
        with tempfile.TemporaryDirectory(prefix="maggy_like-") as directory:
            path = Path(directory, "saved.ckpt")
            trainer.save_checkpoint(path)
            if path.is_dir():
                raise ReportError(
                    "strategy must write a checkpoint as one file, got one that writes a directory; use "
                    "FSDPStrategy(state_dict_type='full'), or the same option of your strategy"
                )
            return {"checkpoint": path.read_bytes() if trainer.is_global_zero else b""}


def _start_from_configured(scheduler: Any) -> None:
    """Have a schedule, and those that it consists of, start from the learning rates that are configured."""
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [group["initial_lr"] for group in scheduler.optimizer.param_groups]
    for part in getattr(scheduler, "_schedulers", ()):
        _start_from_configured(part)
