"""PyTorch's fully sharded data parallelism (FSDP2), unchanged, on two workers.

Either line runs the same ``train`` on two ranks; the first one on a Spark cluster where a session is active:

    python examples/distributed/fsdp.py
    torchrun --nproc-per-node 2 examples/distributed/fsdp.py
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

import maggy_like


def train() -> float:
    """Train a network on handwritten digits; returns the held-out accuracy."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= local_ranks  # one device each
    if cuda:
        torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl" if cuda else "gloo")
    accuracy = fit(torch.device("cuda", local_rank) if cuda else torch.device("cpu"))
    dist.destroy_process_group()
    return accuracy


def fit(device: torch.device) -> float:
    """The training of one rank on its device."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    train_set, test_set = random_split(digits, [0.75, 0.25])
    sampler: DistributedSampler[Any] = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    x_test, y_test = (part.to(device) for part in test_set[:])

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    blocks = [nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.LayerNorm(128)) for _ in range(2)]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *blocks, nn.Linear(128, 10)).to(device)
    for block in blocks:  # a block's weights are whole only while it computes
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    accuracy = 0.0
    for epoch in range(1, 9):
        sampler.set_epoch(epoch)
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()

        model.eval()
        with torch.no_grad():  # each forward pass gathers the weights, so all ranks take part
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun started this process as one of its ranks
        train()
    else:
        accuracy = maggy_like.run(train, workers=2)
        print(f"held-out accuracy {accuracy:.3f}")
