"""What is minimised: the loss of a network on a batch, as a module of its own that can be made data-parallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maggy_like.errors import ConfigError, DataError
from maggy_like.ml.columns.arrays import precision_of
from maggy_like.ml.estimator.names import Loss

Batch = Mapping[str, Tensor]
Metrics = dict[str, Tensor]


class Objective(nn.Module):
    """The mean loss of a network on a batch, and its metrics.

    Args:
        network: Takes the inputs in order, and gives an output, or a tuple of one for each label.
        losses: One for each label.
        features: Columns of the inputs.
        labels: Columns of the labels.
        as_fractions: Columns of whole numbers that the network takes as fractions.
        weight: Column of a weight for each row, if there is one.
        class_weights: Weight of each class, if classes have some.
        weight_scale: Makes the mean of all rows' weights 1, so that weights do not change the step size.
    """

    def __init__(
        self,
        network: nn.Module,
        losses: Sequence[Loss],
        features: Sequence[str],
        labels: Sequence[str],
        *,
        as_fractions: Sequence[str] = (),
        weight: str | None = None,
        class_weights: Sequence[float] | None = None,
        weight_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.network = network
        self._losses = list(losses)
        self._features, self._labels, self._weight = list(features), list(labels), weight
        self._as_fractions = tuple(as_fractions)
        self._class_weights = None if class_weights is None else torch.tensor(class_weights)
        self._scale = weight_scale

    def forward(self, batch: Batch, index: int = 0) -> tuple[Tensor, Metrics]:
        """The mean loss over the rows, to be minimised, and metrics that are means over them too."""
        outputs = self.network(*inputs_of(self.network, batch, self._features, self._as_fractions))
        if not isinstance(outputs, list | tuple):
            outputs = (outputs,)
        if len(outputs) != len(self._labels):
            raise ConfigError(
                f"the network gives {len(outputs)} outputs, and labelCol names {len(self._labels)} "
                f"({', '.join(self._labels)}); they must be as many"
            )
        total, metrics = torch.zeros((), device=outputs[0].device), Metrics()
        for loss, output, name in zip(self._losses, outputs, self._labels, strict=True):
            output, label = fitted(loss, output, batch[name])
            total = total + self._mean(loss, output, label, batch)
            if (right := _right(loss, output, label)) is not None:
                metrics["accuracy" if len(self._labels) == 1 else f"accuracy_{name}"] = right
        return total, {"loss": total.detach(), **metrics}

    def _mean(self, loss: Loss, output: Tensor, label: Tensor, batch: Batch) -> Tensor:
        if self._weight is None and self._class_weights is None:
            value: Tensor = loss.function(output, label)
            return value if value.dim() == 0 else value.mean()
        assert loss.per_row is not None  # checked before
        rows = loss.per_row(output, label)
        rows = rows.flatten(1).mean(1) if rows.dim() > 1 else rows
        weights = torch.full_like(rows, self._scale)
        if self._weight is not None:
            weights = weights * batch[self._weight].to(rows.dtype)
        if self._class_weights is not None:
            weights = weights * self._class_weights.to(rows)[label.long().flatten()]
        weighed: Tensor = (weights * rows).mean()
        return weighed


def decoded(
    batch: Mapping[str, Any], decode: Mapping[str, Callable[[bytes], Any]], device: torch.device
) -> dict[str, Tensor]:
    """The batch with columns of bytes as tensors.

    Args:
        decode: Functions that make a tensor or array of a row's bytes, by column.
        device: Where the batch is to be.

    Raises:
        DataError: Rows of a column differ in shape.
    """
    made: dict[str, Tensor] = dict(batch)
    for name in decode.keys() & batch.keys():
        rows = [torch.as_tensor(decode[name](value)) for value in batch[name]]
        if len(shapes := {tuple(row.shape) for row in rows}) > 1:
            raise DataError(f"decode[{name!r}] gives tensors of different shapes in one batch: {sorted(shapes)}")
        made[name] = torch.stack(rows).to(device)
    return made


def inputs_of(
    network: nn.Module, batch: Batch, columns: Sequence[str], as_fractions: Sequence[str] = ()
) -> list[Tensor]:
    """Columns of a batch; fractions in the precision of the network, as Spark has most of them in double."""
    dtype = precision_of(network)
    return [
        batch[name].to(dtype) if name in as_fractions or is_fraction(batch[name]) else batch[name] for name in columns
    ]


def is_fraction(value: object) -> bool:
    """Whether a column of a batch is a tensor of fractions."""
    return isinstance(value, Tensor) and value.is_floating_point()


def fitted(loss: Loss, output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Output and label in the shapes and types that the loss takes.

    An output of one number a row loses its last dimension where the label has none: a loss of shapes [rows, 1] and
    [rows] would be one of all pairs.
    """
    if loss.kind == "classes" and label.dim() == output.dim() - 1:
        return output, label.long()
    if loss.kind in ("binary", "probability", "values"):
        if output.dim() == label.dim() + 1 and output.shape[-1] == 1:
            output = output.squeeze(-1)
        elif label.dim() == output.dim() + 1 and label.shape[-1] == 1:
            label = label.squeeze(-1)
    return output, label.to(output.dtype) if label.is_floating_point() or loss.kind != "other" else label


def _right(loss: Loss, output: Tensor, label: Tensor) -> Tensor | None:
    """Share of the rows whose label is predicted, of losses over classes."""
    with torch.no_grad():
        if loss.kind == "classes" and label.dim() == output.dim() - 1:
            return (output.argmax(1) == label).float().mean()
        if loss.kind in ("binary", "probability") and output.shape == label.shape:
            return ((output > (0.0 if loss.kind == "binary" else 0.5)) == (label > 0.5)).float().mean()
    return None
