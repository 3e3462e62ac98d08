"""A Keras model: tune its layers and its learning rate, and load the best weights.

One callback reports each epoch, stops bad trials, and saves and restores weights and optimizer.

    pip install "maggy_like[keras,torch,sklearn]"
    python examples/keras_model.py

For your own model, change ``make_model`` and ``load``. Keras computes with PyTorch here. Set ``KERAS_BACKEND`` in the
environment for another backend.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from maggy_like import Float, Integer, Reporter, lagom
from maggy_like.callbacks import KerasReport

SPACE = {"lr": Float(1e-4, 1e-1, log=True), "units": Integer(16, 128, log=True), "activation": ["relu", "tanh"]}


def make_model(lr: float, units: int, activation: str) -> keras.Model:
    """Return a compiled model."""
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(units, activation), keras.layers.Dense(10, "softmax")]
    )
    model.compile(keras.optimizers.Adam(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def load() -> Any:
    """Return pixels and digits to train on, and pixels and digits to validate on."""
    pixels, digits = load_digits(return_X_y=True)
    fit, held_out, fit_digits, held_out_digits = train_test_split(pixels / 16, digits, random_state=0)
    return (fit, fit_digits), (held_out, held_out_digits)


def train(reporter: Reporter, **config: Any) -> None:
    """Train the model up to the trial's budget of epochs."""
    keras.utils.set_random_seed(0)
    report = KerasReport(reporter)
    fit, held_out = load()
    make_model(**config).fit(
        *fit,
        validation_data=held_out,
        batch_size=64,
        initial_epoch=report.initial_epoch,
        epochs=reporter.budget,
        callbacks=[report],
        verbose=0,
    )


def main() -> None:
    """Search, and load the best weights."""
    parser = argparse.ArgumentParser(description="Tune a Keras model.")
    parser.add_argument("--trials", type=int, default=16, help="configurations to try (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=9, help="epochs at most (default: %(default)s)")
    given = parser.parse_args()
    result = lagom(
        train, SPACE, optimizer="asha", metric="val_accuracy", n_trials=given.trials, max_budget=given.epochs, seed=1
    )
    print(result)
    assert result.best_config is not None
    model = make_model(**result.best_config)
    model.set_weights(result.load_best()["weights"])
    _, accuracy = model.evaluate(*load()[1], verbose=0)
    print(f"accuracy of the best weights: {accuracy:.4f}; in the search: {result.best_value:.4f}")


if __name__ == "__main__":
    main()
