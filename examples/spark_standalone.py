"""The quickstart's search on a real Spark standalone cluster of two workers on this machine.

The cluster comes from the pip package of pyspark; each of its workers owns one GPU with a made-up
address, so its trials see different ``CUDA_VISIBLE_DEVICES``. It is stopped at the end.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from quickstart import SPACE, train

from maggy_like import Reporter, StandaloneCluster, lagom, spark_session


def train_and_tell_where(reporter: Reporter, **config: Any) -> None:
    """The quickstart's training; the first line says on which GPU it runs."""
    print(f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES')} of this machine")
    train(reporter=reporter, **config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search on a Spark cluster that this script starts.")
    parser.add_argument("--trials", type=int, default=27, help="how many configurations to try (default: %(default)s)")
    n_trials = parser.parse_args().trials
    print("Starting a standalone cluster: one master, two workers, a made-up GPU each ...")
    with StandaloneCluster(workers=2, gpus=1) as cluster:
        spark = spark_session(cluster.master_url, app_name="maggy_like on standalone", conf=cluster.conf)
        try:
            print(f"Searching on the workers of {cluster.master_url} ...")
            result = lagom(
                train_and_tell_where,
                SPACE,
                optimizer="asha",
                metric="accuracy",
                n_trials=n_trials,
                max_budget=9,
                workers=2,
                seed=1,
            )
        finally:
            spark.stop()
    gpus = {result.log(trial.id).splitlines()[0] for trial in result.trials}
    print("trials ran on:", ", ".join(sorted(gpus)))
