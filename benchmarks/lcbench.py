"""YAHPO Gym's surrogate of LCBench: predicted learning curves of one data set.

It needs ``onnxruntime`` and a directory with the model, its encoding, the parameters and the references. It imports
nothing of this project, because the systems of :mod:`benchmarks.race` run it in interpreters without ``maggy_like``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPOCHS = 50
DIRECTORY = "lcbench-surrogate"
_LEAST_SECONDS = 0.05
_ORDER = ("batch_size", "learning_rate", "momentum", "weight_decay", "num_layers", "max_units", "max_dropout")


def parameters(curves: Path) -> list[dict[str, Any]]:
    """Return what describes each parameter: its name, type, bounds, and whether its scale is logarithmic."""
    described = json.loads((curves / DIRECTORY / "config_space.json").read_text())["hyperparameters"]
    return [entry for entry in described if entry["name"] in _ORDER]


def reference(curves: Path, number: str) -> dict[str, float]:
    """Return the best known error of a data set, the median of random ones, and the mean time of a training run."""
    found: dict[str, float] = json.loads((curves / DIRECTORY / "references.json").read_text())[number]
    return found


class Curves:
    """The learning curves of one data set.

    Args:
        curves: The directory that has :data:`DIRECTORY`.
        number: The number of the data set at OpenML.
    """

    def __init__(self, curves: Path, number: str) -> None:
        import onnxruntime

        directory = curves / DIRECTORY
        code = json.loads((directory / "encoding.json").read_text())["OpenML_task_id"][number]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(directory / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._categories, self._numbers = (node.name for node in self._session.get_inputs())
        self._codes = np.full((EPOCHS, 1), code, dtype=np.int32)

    def __call__(self, config: Mapping[str, Any]) -> tuple[Array, Array]:
        """Return the validation error after each epoch of a configuration, and the seconds that each epoch lasts."""
        values = [config[name] for name in _ORDER]
        # The network's first epoch is that of a model before its training.
        rows = np.array([[epoch, *values] for epoch in range(2, EPOCHS + 2)], dtype=np.float32)
        found = self._session.run(None, {self._categories: self._codes, self._numbers: rows})[0].astype(float)
        seconds = np.maximum.accumulate(np.maximum(found[:, 0], _LEAST_SECONDS))
        return 1.0 - 0.01 * found[:, 1], np.diff(seconds, prepend=0.0)
