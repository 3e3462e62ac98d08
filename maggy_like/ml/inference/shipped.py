"""A network sent to Spark's Python workers, each of which loads it once."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import warnings
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from maggy_like.errors import ConfigError
from maggy_like.ml.columns.arrays import fractions_of
from maggy_like.processes.pickles import dumps

_KEPT = 3
"""Number of networks that a worker keeps, as in ``pyspark.ml.functions.predict_batch_udf``."""

_loaded: OrderedDict[tuple[str, str], nn.Module] = OrderedDict()


@dataclass(frozen=True)
class ShippedNetwork:
    """A network as bytes; equal bytes are one network.

    Attributes:
        content: Pickled network with the classes of a notebook or script.
        digest: Key of the network in a worker's cache.
        fractions: Precision in which it computes: ``"float32"`` or ``"float64"``.
    """

    content: bytes
    digest: str
    fractions: str

    @classmethod
    def of(cls, network: nn.Module) -> ShippedNetwork:
        """Pickle a network on the CPU.

        Raises:
            ConfigError: Something in it cannot be pickled.
        """
        held = [*network.parameters(), *network.buffers()]
        on_cpu = network if all(it.device.type == "cpu" for it in held) else copy.deepcopy(network).cpu()
        try:
            content = dumps(on_cpu)
        except Exception as error:
            raise ConfigError(
                f"the network of type {type(network).__name__} cannot be sent to Spark's workers: {error}"
            ) from error
        return cls(content, hashlib.sha256(content).hexdigest(), fractions_of(network))

    def made(self) -> nn.Module:
        """Make the network again, in evaluation mode on the CPU."""
        network: nn.Module = pickle.loads(self.content)  # noqa: S301  # comes with Spark's own closure
        return network.eval()

    def load(self, device: torch.device) -> nn.Module:
        """Return the network in evaluation mode on a device, loaded once per process for all tasks."""
        key = (self.digest, str(device))
        if key not in _loaded:
            _loaded[key] = self.made().to(device)
            if len(_loaded) > _KEPT:
                _loaded.popitem(last=False)
        _loaded.move_to_end(key)
        return _loaded[key]


def task_device() -> torch.device:
    """Return the first GPU that Spark gave this task, or the CPU."""
    from pyspark import TaskContext  # here, so that a server of MLflow's predicts without it

    context = TaskContext.get()
    gpu = context.resources().get("gpu") if context is not None else None
    if gpu is None or not gpu.addresses:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        warnings.warn(
            f"torch cannot use GPU {gpu.addresses[0]}, which Spark gave this task; the CPU is used", stacklevel=1
        )
        return torch.device("cpu")
    return torch.device("cuda", device_index(gpu.addresses[0], os.environ.get("CUDA_VISIBLE_DEVICES")))


def device_index(address: str, visible: str | None) -> int:
    """Return the number by which torch knows the GPU of an address.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``, which CUDA counts by.

    Example:
        >>> device_index("3", None), device_index("3", "2,3")
        (3, 1)
    """
    known = visible.split(",") if visible else []
    return known.index(address) if address in known else int(address)
