"""The training of ``benchmarks.handoff``: plain DistributedDataParallel that writes down when what happened.

It is one function for all that starts it: a trial of a search (one rank, no process group), several workers, and, as a
script, torchrun:

    torchrun --nproc-per-node 2 benchmarks/handoff_train.py DIRECTORY STEPS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from maggy_like import Reporter

WIDTH = 512
BATCH = 64


class Marks(msgspec.Struct, frozen=True):
    """What one rank saw; times in seconds since the epoch, on the clock that all processes of a machine share.

    Attributes:
        ranks: Number of ranks.
        steps: Number of steps.
        ready: The first step was done, less the time that the process group took.
        first_step: The first step was done.
        ended: The last step was done.
    """

    ranks: int
    steps: int
    ready: float
    first_step: float
    ended: float

    @property
    def steps_per_second(self) -> float:
        """Without the first step, which loads what the others have loaded."""
        return (self.steps - 1) / (self.ended - self.first_step)


def train(directory: str, lr: float, reporter: Reporter) -> float:
    """Take ``reporter.budget`` steps of a few milliseconds, and report each; returns the last loss.

    Args:
        directory: Where this rank's :class:`Marks` go, in a file of their own.
        lr: Learning rate.
        reporter: The trial's, or one that stands alone.
    """
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)  # the same share of the machine whoever starts the ranks
    group_begun = time.time()
    if ranks > 1:
        dist.init_process_group("gloo")
    group_seconds = time.time() - group_begun

    loss, first_step, ended = fit(lr, reporter, distributed=ranks > 1)
    marks = Marks(ranks, reporter.budget, first_step - group_seconds, first_step, ended)
    Path(directory, f"{reporter.trial}-{rank}-of-{ranks}.json").write_bytes(msgspec.json.encode(marks))
    if ranks > 1:
        dist.destroy_process_group()
    return loss


def fit(lr: float, reporter: Reporter, *, distributed: bool) -> tuple[float, float, float]:
    """The steps. A function of its own, so that the model is gone before its process group goes, or Gloo may hang.

    Returns:
        The last loss, and when the first and the last step were done.
    """
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                                       nn.Linear(WIDTH, 10))  # fmt: skip
    model = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    inputs, labels = torch.randn(BATCH, 256), torch.randint(10, (BATCH,))

    first_step = value = 0.0
    for step in range(1, reporter.budget + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        value = loss.item()
        reporter.report(loss=value, step=step)
        if step == 1:
            first_step = time.time()
    return value, first_step, time.time()


if __name__ == "__main__":
    train(sys.argv[1], 0.01, Reporter(int(sys.argv[2])))
