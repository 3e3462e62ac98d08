"""The callback of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maggy_like.callbacks.progress import Progress
from maggy_like.errors import UserError
from maggy_like.extras import require

require("keras", "KerasReport")

try:
    import keras  # the error above names the extra
except ImportError as error:
    raise UserError(
        f"KerasReport needs a backend of Keras, which cannot be imported: {error}; install it, or set the environment "
        "variable KERAS_BACKEND to one that is installed, such as 'torch', before keras is imported"
    ) from error

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


class KerasReport(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Reports each epoch of Keras' ``fit``, with the metrics of its logs (``loss``, ``val_accuracy``).

    What is saved is ``{"step": epochs, "weights": [...], "optimizer": [...]}``; ``model.set_weights(weights)`` takes
    the first list. It is restored as ``fit`` begins.

    Args:
        reporter: Of the trial.
        save_every: Epochs from one saved state to the next.

    Attributes:
        initial_epoch: Epochs that the saved state has had.

    Example:
        >>> report = KerasReport(reporter)
        >>> model.fit(x, y, validation_data=held_out, epochs=reporter.budget,
        ...           initial_epoch=report.initial_epoch, callbacks=[report])
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        super().__init__()
        self._progress = Progress(reporter, save_every)
        self.initial_epoch = self._progress.step

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the state. Called by Keras, which has built the model and its optimizer."""
        if (state := self._progress.restored) is not None:
            self.model.set_weights(state["weights"])
            for variable, value in zip(self.model.optimizer.variables, state["optimizer"], strict=True):
                variable.assign(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Check where the training stands. Called by Keras."""
        self._progress.check_start(epoch, "initial_epoch=report.initial_epoch, epochs=reporter.budget")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report an epoch. Called by Keras."""
        if not self._progress.take(epoch + 1, logs or {}, self._state):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """End the training function where the trial was told to stop. Called by Keras."""
        self._progress.finish()

    def _state(self) -> dict[str, Any]:
        optimizer = [keras.ops.convert_to_numpy(variable.value) for variable in self.model.optimizer.variables]
        return {"weights": self.model.get_weights(), "optimizer": optimizer}
