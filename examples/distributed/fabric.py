"""Lightning Fabric, unchanged, on two workers.

Either line runs the same ``train`` on two ranks; the first one on a Spark cluster where a session is active:

    python examples/distributed/fabric.py
    torchrun --nproc-per-node 2 examples/distributed/fabric.py
"""

from __future__ import annotations

import os

import torch
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import maggy_like


def train() -> float:
    """Train a network on handwritten digits; returns the held-out accuracy."""
    ranks, local_ranks = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    cuda = torch.cuda.device_count() >= local_ranks  # one device each
    fabric = Fabric(accelerator="cuda" if cuda else "cpu", devices=local_ranks, num_nodes=ranks // local_ranks)
    fabric.launch()

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    train_set, test_set = random_split(digits, [0.75, 0.25])
    train_loader = fabric.setup_dataloaders(DataLoader(train_set, batch_size=16, shuffle=True))
    x_test, y_test = (fabric.to_device(part) for part in test_set[:])

    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer = fabric.setup(network, torch.optim.AdamW(network.parameters(), lr=3e-3))

    accuracy = 0.0
    for epoch in range(1, 11):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()

        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        fabric.print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun started this process as one of its ranks
        train()
    else:
        accuracy = maggy_like.run(train, workers=2)
        print(f"held-out accuracy {accuracy:.3f}")
