"""The callback of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.callbacks.progress import Progress
from maggy_like.errors import UserError
from optimizers.checks import explains_init

require("keras", "KerasReport")

try:
    import keras  # the error above names the extra
except ImportError as error:
    raise UserError(
        f"KerasReport needs a backend of Keras, and the backend cannot be imported: {error}; install it, or set the "
        "environment variable KERAS_BACKEND to an installed one, such as 'torch', before you import keras"
    ) from error

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter


@explains_init
class KerasReport(keras.callbacks.Callback):  # type: ignore[misc, unused-ignore]
    """Report each epoch of Keras' ``fit``, with its metrics (``loss``, ``val_accuracy``).

    The checkpoint is ``{"step": epochs, "weights": [...], "optimizer": [...]}``. Load its weights by
    ``model.set_weights(state["weights"])``. A state is restored when ``fit`` begins, if you pass ``initial_epoch``. A
    trial that continues from another trial's state (``PBT``) keeps the learning rate that it was compiled with.

    Put it last in the list of callbacks, so that the state has what the others change at the end of an epoch.
    ``EarlyStopping`` and ``ReduceLROnPlateau`` start counting again in each attempt of a trial.

    Args:
        reporter: Reporter of the trial.
        save_every: Number of epochs between checkpoints. Default: 1.

    Attributes:
        initial_epoch: Number of epochs that the checkpoint was trained for; 0 if there is none.

    Raises:
        UserError: Keras is not installed, or its backend cannot be imported.
        ReportError: An argument is invalid, or no metric was logged.

    Example:
        >>> def train(lr, reporter):
        ...     report = KerasReport(reporter)
        ...     model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
        ...     model.compile(keras.optimizers.Adam(lr), "binary_crossentropy", metrics=["accuracy"])
        ...     model.fit(x, y, validation_data=(x_test, y_test), epochs=reporter.budget,
        ...               initial_epoch=report.initial_epoch, callbacks=[report], verbose=0)
        >>> lagom(train, {"lr": Float(1e-4, 1e-1, log=True)}, metric="val_accuracy", n_trials=2).objective
        'val_accuracy'
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        super().__init__()
        self._progress = Progress(reporter, save_every, "Keras")
        self._continues = self._has_begun = False

    @property
    def initial_epoch(self) -> int:
        self._continues = True
        return self._progress.step

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the state. Called by Keras after it has built the model and its optimizer."""
        if (state := self._progress.restored) is not None and self._continues:
            self.model.set_weights(state["weights"])
            for variable, value in zip(self.model.optimizer.variables, state["optimizer"], strict=True):
                if self._progress.parent is None or variable.name != "learning_rate":  # of this trial's configuration
                    variable.assign(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count from the first epoch of the training. Called by Keras."""
        if not self._has_begun:
            self._progress.begin(epoch, "initial_epoch=report.initial_epoch to model.fit")
        self._has_begun = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report an epoch. Called by Keras."""
        if not self._progress.take(epoch + 1, logs or {}, self._state):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """End the training function if the trial was stopped. Called by Keras."""
        self._progress.finish()

    def _state(self) -> dict[str, Any]:
        optimizer = [keras.ops.convert_to_numpy(variable.value) for variable in self.model.optimizer.variables]
        return {"weights": self.model.get_weights(), "optimizer": optimizer}
