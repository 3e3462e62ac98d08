"""The search of :mod:`benchmarks.schedule` by Ray Tune's population-based training, run by an interpreter that has Ray.

Run as ``python -m benchmarks.schedule_ray SEED FOLDER``. Each step of a training adds a line to ``FOLDER/steps``: the
step, and the loss after it. Interval, quantile and the chance of drawing anew are those of ours. Trials wait for each
other at the end of an interval (``synch=True``), as those that all take as long come to it together; so two actors,
which are used again, train the sixteen in turns. It differs from ours in how a configuration moves: a number is drawn
anew in a quarter of the cases, and times 0.8 or 1.2 in the others.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.schedule_task import INTERVAL, LR, STEPS, WORKERS, train

QUANTILE, RESAMPLE = 0.25, 0.25
ACTORS = 2
PATIENCE = 900
"""Seconds after which a search that hangs is ended."""


def search(seed: int, folder: str) -> None:
    """Search with one seed."""
    import ray
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    class Training(tune.Trainable):  # type: ignore[misc]
        """A training that wins the more in a step the nearer its learning rate is to the best one of that step."""

        def setup(self, config: dict[str, Any]) -> None:
            self.done, self.won = 0, 0.0

        def reset_config(self, config: dict[str, Any]) -> bool:
            """Another trial begins in this actor; if it has a state, that is loaded next."""
            self.config = config
            self.done, self.won = 0, 0.0
            return True

        def step(self) -> dict[str, Any]:
            self.done += 1
            loss, _, self.won = train(self.config, self.done, self.won)
            with Path(folder, "steps").open("a") as file:
                file.write(f"{self.done} {loss!r}\n")
            return {"loss": loss}

        def save_checkpoint(self, folder: str) -> None:
            Path(folder, "state").write_text(f"{self.done} {self.won!r}")

        def load_checkpoint(self, folder: str) -> None:
            done, won = Path(folder, "state").read_text().split()
            self.done, self.won = int(done), float(won)

    random.seed(seed)
    np.random.seed(seed)  # what Ray's search and its scheduler draw from
    space = {"lr": tune.loguniform(*LR), "decay": tune.uniform(0.0, 1.0)}
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])  # for the actors
    ray.init(num_cpus=ACTORS, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        Training,
        param_space=dict(space),
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=WORKERS,
            reuse_actors=True,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=INTERVAL,
                quantile_fraction=QUANTILE,
                resample_probability=RESAMPLE,
                hyperparam_mutations=dict(space),
                synch=True,
            ),
        ),
        run_config=tune.RunConfig(storage_path=folder, stop={"training_iteration": STEPS}, verbose=0),
    ).fit()
    ray.shutdown()


if __name__ == "__main__":
    signal.alarm(PATIENCE)
    search(int(sys.argv[1]), sys.argv[2])
