"""What a careful user would write by hand for torchrun: the training that ``benchmarks.estimator`` compares with.

torchrun --nproc-per-node 2 benchmarks/estimator_torchrun.py DATA.parquet EPOCHS BATCH OUT.json
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 32
"""Features of a row."""


def network(hidden: int = 256) -> nn.Module:
    """The network that both train."""
    return nn.Sequential(
        nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )


def main(data: str, epochs: int, batch: int, out: str) -> None:
    """Train, and write down when each epoch ended and what its mean loss was."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    table = pq.read_table(data, columns=["features", "label"])
    x = torch.from_numpy(table["features"].combine_chunks().flatten().to_numpy().reshape(-1, WIDTH).copy())
    y = torch.from_numpy(np.array(table["label"], dtype=np.float32))
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    marks = []
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(epoch))
        total = torch.zeros(())
        for start in range(0, len(y), batch):
            mine = order[start : start + batch][rank::ranks]
            loss = nn.functional.mse_loss(model(x[mine]).squeeze(1), y[mine])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach() * len(mine)
        dist.all_reduce(total)
        marks.append((epoch, time.time(), total.item() / len(y)))
    if rank == 0:
        Path(out).write_text(json.dumps(marks))
    dist.barrier()
    os._exit(0)  # as torch 2.13 is torn down, threads of gloo's abort the process now and then


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
