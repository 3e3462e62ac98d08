"""PyTorch's DistributedDataParallel, unchanged, on two workers.

Either line runs the same ``train`` on two ranks; the first one on a Spark cluster where a session is active:

    python examples/distributed/ddp.py
    torchrun --nproc-per-node 2 examples/distributed/ddp.py
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split

import maggy_like


def train() -> float:
    """Train a network on handwritten digits; returns the held-out accuracy."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= local_ranks  # one device each
    dist.init_process_group("nccl" if cuda else "gloo")
    accuracy = fit(torch.device("cuda", local_rank) if cuda else torch.device("cpu"))
    dist.destroy_process_group()
    return accuracy


def fit(device: torch.device) -> float:
    """The training of one rank on its device."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    train_set, test_set = random_split(digits, [0.75, 0.25])
    sampler: DistributedSampler[Any] = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=16, sampler=sampler)
    test_loader = DataLoader(Subset(test_set, range(rank, len(test_set), ranks)), batch_size=128)

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    accuracy = 0.0
    for epoch in range(1, 11):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()

        model.eval()
        right = torch.zeros((), device=device)
        with torch.no_grad():
            for x, y in test_loader:
                right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
        dist.all_reduce(right)
        accuracy = right.item() / len(test_set)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun started this process as one of its ranks
        train()
    else:
        accuracy = maggy_like.run(train, workers=2)
        print(f"held-out accuracy {accuracy:.3f}")
