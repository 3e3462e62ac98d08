"""All that a worker needs to train: plain values, the user's objects, and where the data lie."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.lightning_objective import LightningObjective
from maggy_like.ml.estimator.names import Loss, optimizer_class, read_loss
from maggy_like.ml.estimator.network import build_network, freeze, is_lightning
from maggy_like.ml.estimator.objective import Objective
from optimizers.checks.near_names import did_you_mean


@dataclass(frozen=True)
class Data:
    """Where the rows of a training are.

    Attributes:
        train: URLs of Parquet files to train on.
        validation: Those to validate on; none where there is no validation.
        rows: Rows to train on.
        held: Rows to validate on.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    rows: int
    held: int = 0


@dataclass(frozen=True)
class TrainingPlan:
    """One training: Params of the Estimator under other names, checked and filled in.

    Attributes:
        rate: The learning rate; None where the optimizer brings its own.
        weight_scale: Factor that makes the mean weight of the rows 1.
        as_fractions: Columns of whole numbers that the network takes as fractions.
        least_share: Rows that each rank needs of a batch.
        data: Where the rows are.
        stage_params: Names of Params of the stages before, where these are searched too.
        variants: The training on what came of each combination of their values.
    """

    model: Any
    loss: Any
    features: tuple[str, ...]
    labels: tuple[str, ...]
    data: Data
    model_params: dict[str, Any] = field(default_factory=dict)
    optimizer: Any = "adam"
    optimizer_params: dict[str, Any] = field(default_factory=dict)
    rate: float | None = 1e-3
    weight: str | None = None
    class_weights: tuple[float, ...] | None = None
    weight_scale: float = 1.0
    batch_size: int = 32
    epochs: int = 1
    patience: int | None = None
    min_delta: float = 0.0
    keep_best: bool = True
    freeze: tuple[str, ...] = ()
    decode: dict[str, Callable[[bytes], Any]] = field(default_factory=dict)
    callbacks: tuple[Callable[..., Any], ...] = ()
    seed: int = 0
    as_fractions: tuple[str, ...] = ()
    least_share: int = 1
    stage_params: tuple[str, ...] = ()
    variants: dict[tuple[Any, ...], TrainingPlan] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return (*self.features, *self.labels, *((self.weight,) if self.weight else ()))

    @property
    def losses(self) -> list[Loss]:
        """The loss of each label.

        Raises:
            ConfigError: There are more or fewer, or they cannot be weighed by row.
        """
        if self.loss is None:
            raise ConfigError("loss is missing; pass a name such as 'cross_entropy', a loss of torch.nn or a function")
        given = self.loss if isinstance(self.loss, list | tuple) else [self.loss] * len(self.labels)
        if len(given) != len(self.labels):
            raise ConfigError(
                f"loss has {len(given)} losses, and labelCol {len(self.labels)} columns; give one for each"
            )
        losses = [read_loss(it) for it in given]
        for loss in losses:
            if (self.weight or self.class_weights) and loss.per_row is None:
                raise ConfigError(
                    f"loss {loss.name!r} gives no loss for each row, which {self.weight or 'classWeights'} need; pass "
                    "a loss of torch.nn, or a function with a parameter reduction"
                )
            if self.class_weights and loss.kind not in ("classes", "binary", "probability"):
                raise ConfigError(f"classWeights need a loss over classes, and {loss.name!r} is none")
        return losses

    def objective(self) -> Objective | LightningObjective:
        """The network with its loss, made anew.

        Raises:
            ConfigError: The network cannot be made.
        """
        network = build_network(self.model, self.model_params, self.seed)
        if is_lightning(network):
            steps = math.ceil(self.data.rows / self.batch_size)
            return LightningObjective(network, self.columns, self.epochs, steps, self.as_fractions)
        return Objective(
            network,
            self.losses,
            self.features,
            self.labels,
            as_fractions=self.as_fractions,
            weight=self.weight,
            class_weights=self.class_weights,
            weight_scale=self.weight_scale,
        )

    def frozen(self, network: nn.Module) -> list[nn.Module]:
        """The modules that are not trained, frozen."""
        return freeze(network, self.freeze)

    def with_config(self, config: Mapping[str, Any]) -> TrainingPlan:
        """The plan with the values of a configuration.

        Args:
            config: By names that :func:`check_names` has taken: of Params, of the model's function, of the optimizer.
        """
        of_model = () if isinstance(self.model, nn.Module) else _arguments(self.model)
        rest = {name: v for name, v in config.items() if name not in self.stage_params or name in of_model}
        if self.variants:
            return self.variants[tuple(config[name] for name in self.stage_params)].with_config(rest)
        fields: dict[str, Any] = {}
        model_params, optimizer_params = dict(self.model_params), dict(self.optimizer_params)
        for name, value in rest.items():
            match home_of(name, self):
                case "param":
                    fields[SEARCHABLE[name]] = value
                case "model":
                    model_params[name] = value
                case _:
                    optimizer_params[name] = value
        return replace(self, **fields, model_params=model_params, optimizer_params=optimizer_params)


SEARCHABLE = {
    "batchSize": "batch_size",
    "learningRate": "rate",
    "loss": "loss",
    "minDelta": "min_delta",
    "optimizer": "optimizer",
    "patience": "patience",
    "seed": "seed",
}
"""Params that a search may vary, and the fields that they become."""


def home_of(name: str, plan: TrainingPlan) -> str:
    """Whose a name of the search space is: a ``param``, of the ``model``'s function, or of the ``optimizer``.

    Raises:
        ConfigError: Nobody's.
    """
    if name in SEARCHABLE:
        return "param"
    of_model = [] if isinstance(plan.model, nn.Module) else _arguments(plan.model)
    if name in of_model:
        return "model"
    of_optimizer = _arguments(optimizer_class(plan.optimizer))
    if name in of_optimizer:
        return "optimizer"
    known = [*SEARCHABLE, *of_model, *of_optimizer]
    if "**" in known:
        return "model" if "**" in of_model else "optimizer"
    raise ConfigError(
        f"search: {name!r} is no Param to search over, and no argument of the model's function or of the "
        f"optimizer{did_you_mean(name, known)}; there are {', '.join(known)}"
    )


def _arguments(function: Any) -> list[str]:
    """Names that a function takes; ``**`` where it takes any."""
    kinds = inspect.Parameter
    given = inspect.signature(function).parameters.values()
    taken = [p.name for p in given if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    return [name for name in taken if name != "params"] + ["**" for p in given if p.kind is kinds.VAR_KEYWORD]
