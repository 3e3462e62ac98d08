"""The callback of Lightning."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.callbacks.progress import Progress
from maggy_like.extras import require
from maggy_like.protocol.values import ReportError

require("lightning", "LightningReport")

from lightning.pytorch import Callback, LightningModule, Trainer  # noqa: E402  # the error above names the extra

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


class LightningReport(Callback):
    """Reports each epoch of Lightning's ``Trainer``, with the metrics that the module logs.

    What is saved is ``{"step": epochs, "checkpoint": bytes}``, a checkpoint of Lightning's: weights, optimizers,
    schedules, loops, callbacks. ``torch.load(io.BytesIO(bytes))`` reads it.

    What the module logs in its own ``on_train_epoch_end`` is of the epoch's report too. Validate every epoch: of one
    that ran no validation, Lightning has the last one's metrics still, and they are reported again.

    In a trial of several workers all ranks hold this callback; rank 0 reports, and all stop after the same epoch. Log
    with ``sync_dist=True``, so that a metric is that of all ranks.

    Args:
        reporter: Of the trial.
        save_every: Epochs from one saved state to the next.

    Attributes:
        ckpt_path: A file with the saved state, or None.

    Example:
        >>> report = LightningReport(reporter)
        >>> trainer = Trainer(max_epochs=reporter.budget, callbacks=[report], enable_checkpointing=False)
        >>> trainer.fit(module, loader, held_out, ckpt_path=report.ckpt_path)
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        self._progress = Progress(reporter, save_every)
        self.ckpt_path: str | None = None
        self._replaced: Callable[[], None] | None = None
        if self._progress.restored is not None:
            path = Path(tempfile.mkdtemp(prefix="maggy_like-"), "restored.ckpt")
            path.write_bytes(self._progress.restored["checkpoint"])
            self.ckpt_path = str(path)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check where the training starts. Called by Lightning."""
        self._remove_restored()
        self._progress.check_start(trainer.current_epoch, "ckpt_path=report.ckpt_path to trainer.fit")
        if not self._progress.left:
            trainer.should_stop = True

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See to it that an epoch is reported after the module's own hook, which may log. Called by Lightning."""
        own = pl_module.on_train_epoch_end
        self._replaced = vars(pl_module).get("on_train_epoch_end")

        def then_report() -> None:
            own()
            self._report(trainer)

        # Lightning calls the callbacks' hooks before the module's.
        pl_module.on_train_epoch_end = then_report

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the training function where the trial was told to stop. Called by Lightning."""
        self._leave(pl_module)
        self._progress.finish()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the module as it was. Called by Lightning."""
        self._leave(pl_module)

    def _leave(self, module: LightningModule) -> None:
        vars(module).pop("on_train_epoch_end", None)
        if self._replaced is not None:  # a hook of the object's own
            vars(module)["on_train_epoch_end"] = self._replaced
        self._remove_restored()

    def _remove_restored(self) -> None:
        """Remove the file with the restored state, which has been loaded or is of no use."""
        if self.ckpt_path is not None:
            shutil.rmtree(Path(self.ckpt_path).parent, ignore_errors=True)

    def _report(self, trainer: Trainer) -> None:
        if not self._progress.take(trainer.current_epoch + 1, trainer.callback_metrics, lambda: self._state(trainer)):
            trainer.should_stop = True

    def _state(self, trainer: Trainer) -> dict[str, Any]:
        """A checkpoint; all ranks must come here, and rank 0 gets it."""
        with tempfile.TemporaryDirectory(prefix="maggy_like-") as folder:
            path = Path(folder, "saved.ckpt")
            trainer.save_checkpoint(path)
            if path.is_dir():
                raise ReportError(
                    "LightningReport saves checkpoints of one file, and this strategy writes a folder; ask it for full "
                    "states, as FSDPStrategy(state_dict_type='full') does"
                )
            return {"checkpoint": path.read_bytes() if trainer.is_global_zero else b""}
