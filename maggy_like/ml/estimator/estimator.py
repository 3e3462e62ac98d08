"""``TorchEstimator``: train a network of torch on a DataFrame, or search for the best one first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.ml import Estimator
from pyspark.ml.util import MLReadable, MLWritable
from pyspark.sql import DataFrame

from maggy_like.ml.estimator.checks import check_frame
from maggy_like.ml.estimator.fit import fit_network
from maggy_like.ml.estimator.model import TorchModel
from maggy_like.ml.estimator.params import ObjectsReader, ObjectsWriter, TrainingParams
from optimizers.checks import explains_init


@explains_init
class TorchEstimator(Estimator[TorchModel], TrainingParams, MLReadable["TorchEstimator"], MLWritable):
    """Trains a network of torch on the rows of a DataFrame, on a gang of workers together.

    An Estimator of pyspark.ml: it works in a ``Pipeline``, with ``CrossValidator`` and ``TrainValidationSplit``, and is
    saved and loaded as they are. The DataFrame is written to Parquet once, unless it is in Parquet files already; each
    epoch reads every row once. The batch size is that of all workers together, so that their number changes nothing
    but the speed.

    With ``search``, ``fit`` searches first and then trains the best configuration on the same gang. Names of the search
    space are those of Params (``learningRate``, ``batchSize``, ``optimizer``, ``loss``, ``patience``, ``seed``), of
    arguments of the function that makes the network, and of the optimizer.

    Labels are class numbers for ``"cross_entropy"`` and the like, 0 or 1 for ``"bce_with_logits"``, and numbers for
    ``"mse"``. Of several labels, the network gives an output each, and the Model adds ``prediction_LABEL`` for each.

    Args:
        model: The network: a module, or a function or class that makes one of ``modelParams``. A Lightning module
            brings loss, optimizer and schedule; one that needs a Trainer (optimization by hand, several optimizers,
            hooks within an epoch) is refused.
        modelParams: Arguments of that function.
        loss: A name, a loss of torch.nn, or ``f(output, label)``; a list of them, one for each label, whose sum counts.
        outputKind: What the network gives, where the loss does not say it: ``"classes"`` (logits), ``"binary"`` (a
            logit), ``"probability"``, ``"values"`` or ``"other"``.
        optimizer: A name, a class of torch.optim, one that was made, or ``f(parameters, **optimizerParams)``.
        optimizerParams: Further arguments of it.
        learningRate: Its step size.
        featuresCol: Column that the network takes, or a list of them, one for each input.
        labelCol: Column of labels, or a list of them, one for each output.
        predictionCol: Column of predictions that the Model adds.
        probabilityCol: Column of the probabilities of classes that it adds for losses over classes.
        errorCol: Column that says why a row has no prediction; it is added if it is named.
        resultCol: Column of structs with label, score, vector and error; it is added if it is named.
        decode: Functions that make a tensor of a row's bytes, by names of columns: ``{"image": decode_png}``.
        weightCol: Column with a weight for each row.
        classWeights: A weight for each class, or ``"balanced"``: as if all classes had as many rows.
        validationIndicatorCol: Boolean column, true where a row is to validate on.
        validationFraction: Share of the rows to validate on instead, chosen by ``seed``.
        batchSize: Rows of a batch, over all workers.
        epochs: Passes over the rows, at most.
        patience: Epochs without a lower loss (of the validation, if there is one) after which the training ends.
        minDelta: By how much that must fall to be lower.
        keepWeights: The ``"best"`` weights by that loss, or the ``"last"``.
        freeze: Globs of names of modules that are not trained: ``["encoder*"]``.
        callbacks: Functions ``f(epoch, metrics, network)``, called on rank 0 after each epoch.
        seed: Source of all randomness.
        workers: Size of the gang; by default all slots of the engine.
        engine: ``"auto"``, ``"spark"``, ``"local"``, ``"inline"``, or an engine with options of its own.
        directory: Path or URL of a folder for data, states and logs, which Spark and all workers see.
        keepData: Whether the copy of the data stays for later processes; by default it goes when this one ends.
        search: Search space by name.
        runOptions: Further arguments of :func:`maggy_like.lagom` (``n_trials``, ``optimizer``, ``timeout``, ...), or of
            :func:`maggy_like.run` where there is no search (``progress``, ``failures``, ...).

    Raises:
        ConfigError: An argument is wrong.

    Example:
        >>> estimator = TorchEstimator(  # doctest: +SKIP
        ...     model=lambda hidden: nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 3)),
        ...     loss="cross_entropy",
        ...     epochs=20,
        ...     search={"hidden": Integer(8, 64), "learningRate": Float(1e-4, 1e-1, log=True)},
        ...     runOptions={"n_trials": 20},
        ... )
        >>> model = estimator.fit(df)  # doctest: +SKIP
        >>> model.transform(df).select("prediction")  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        model: Any = None,
        modelParams: Mapping[str, Any] | None = None,
        loss: Any = None,
        outputKind: str | None = None,
        optimizer: Any = None,
        optimizerParams: Mapping[str, Any] | None = None,
        learningRate: float | None = None,
        featuresCol: str | Sequence[str] | None = None,
        labelCol: str | Sequence[str] | None = None,
        predictionCol: str | None = None,
        probabilityCol: str | None = None,
        errorCol: str | None = None,
        resultCol: str | None = None,
        decode: Mapping[str, Callable[[bytes], Any]] | None = None,
        weightCol: str | None = None,
        classWeights: str | Sequence[float] | None = None,
        validationIndicatorCol: str | None = None,
        validationFraction: float | None = None,
        batchSize: int | None = None,
        epochs: int | None = None,
        patience: int | None = None,
        minDelta: float | None = None,
        keepWeights: str | None = None,
        freeze: Sequence[str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
        seed: int | None = None,
        workers: int | None = None,
        engine: Any = None,
        directory: str | None = None,
        keepData: bool | None = None,
        search: Mapping[str, Any] | None = None,
        runOptions: Mapping[str, Any] | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        self._set_defaults()
        self._take(given)

    def setParams(self, **given: Any) -> TorchEstimator:
        """Set Params by name, as in the constructor.

        Raises:
            ConfigError: There is no such Param, or a value is none that its Param takes.
        """
        self._take(given)
        return self

    def _fit(self, dataset: DataFrame) -> TorchModel:
        check_frame(dataset, "fit")
        return TorchModel._of(fit_network(self, dataset), self)

    def write(self) -> ObjectsWriter:
        """The writer, of pyspark.ml's kind."""
        return ObjectsWriter(self)

    @classmethod
    def read(cls) -> ObjectsReader[TorchEstimator]:
        """The reader, of pyspark.ml's kind."""
        return ObjectsReader(cls)
