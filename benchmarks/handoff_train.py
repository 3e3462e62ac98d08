"""The training of ``benchmarks.handoff``: plain DistributedDataParallel that writes down when what happened.

It is one function for all that starts it: a trial of a search (one rank, no process group), several workers, and, as a
script, torchrun:

    torchrun --nproc-per-node 2 benchmarks/handoff_train.py FOLDER --steps N
"""

from __future__ import annotations

import argparse
import os
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
        started: The function was called.
        group_begun: It began to make the process group.
        group_made: It had it.
        steps: Number of steps.
        first_step: The first of them was done.
        ended: The last of them was done.
        cpu: Processor seconds of this rank's process, all threads, from the first step's end to the last one's.
    """

    ranks: int
    started: float
    group_begun: float
    group_made: float
    steps: int
    first_step: float
    ended: float
    cpu: float

    @property
    def ready(self) -> float:
        """When the first step was done, had the process group taken no time."""
        return self.first_step - (self.group_made - self.group_begun)

    @property
    def steps_per_second(self) -> float:
        """Without the first step, which loads what the others have loaded."""
        return (self.steps - 1) / (self.ended - self.first_step)

    @property
    def cpu_per_step(self) -> float:
        """Processor seconds of a step; other load on the machine changes it less than it changes the time."""
        return self.cpu / (self.steps - 1)


def train(folder: str, lr: float, reporter: Reporter) -> float:
    """Take ``reporter.budget`` steps of a few milliseconds, and report each; returns the last loss.

    Args:
        folder: Where this rank's :class:`Marks` go, in a file of their own.
        lr: Learning rate.
        reporter: The trial's, or one that stands alone.
    """
    started = time.time()
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)  # the same share of the machine whoever starts the ranks
    group_begun = time.time()
    if ranks > 1:
        dist.init_process_group("gloo")
    group_made = time.time()

    loss, pace = fit(lr, reporter, distributed=ranks > 1)
    marks = Marks(ranks, started, group_begun, group_made, reporter.budget, **pace)
    Path(folder, f"{reporter.trial}-{rank}-of-{ranks}.json").write_bytes(msgspec.json.encode(marks))
    if ranks > 1:
        dist.destroy_process_group()
    return loss


def fit(lr: float, reporter: Reporter, *, distributed: bool) -> tuple[float, dict[str, float]]:
    """The steps. A function of its own, so that the model is gone before its process group goes, or Gloo may hang.

    Returns:
        The last loss, and the :class:`Marks` ``first_step``, ``ended`` and ``cpu``.
    """
    torch.manual_seed(0)
    network: nn.Module = nn.Sequential(nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                                       nn.Linear(WIDTH, 10))  # fmt: skip
    model = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    inputs, labels = torch.randn(BATCH, 256), torch.randint(10, (BATCH,))

    first_step = cpu = value = 0.0
    for step in range(1, reporter.budget + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        value = loss.item()
        reporter.report(loss=value, step=step)
        if step == 1:
            first_step, cpu = time.time(), time.process_time()
    return value, {"first_step": first_step, "ended": time.time(), "cpu": time.process_time() - cpu}


def read(folder: Path) -> list[Marks]:
    """The marks of all trials and ranks in ``folder``."""
    return [msgspec.json.decode(path.read_bytes(), type=Marks) for path in folder.glob("*.json")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where each rank writes when what happened")
    parser.add_argument("--steps", type=int, default=1, metavar="N", help="steps of the training")
    arguments = parser.parse_args()
    train(arguments.folder, 0.01, Reporter(arguments.steps))
