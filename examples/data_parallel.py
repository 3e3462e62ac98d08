"""Plain distributed code on two workers: PyTorch's DDP and FSDP2, Hugging Face Accelerate, and Lightning Fabric.

Either line runs the same ``train`` on two ranks; the first one on a Spark cluster if a session is active:

    pip install "maggy_like[torch,sklearn]"                          # and accelerate, or lightning-fabric
    python examples/data_parallel.py ddp                               # or fsdp, accelerate, fabric
    torchrun --nproc-per-node 2 examples/data_parallel.py ddp

For your own training, change ``load`` and ``make_blocks``, and keep one of the four functions below them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, random_split

import maggy_like


def load() -> Any:
    """Return the rows to train on, and the rows to test on."""
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    return random_split(digits, [0.75, 0.25])


def make_blocks() -> list[nn.Module]:
    """Return the parts of the network."""
    inner = [nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.LayerNorm(128)) for _ in range(2)]
    return [nn.Sequential(nn.Linear(64, 128), nn.ReLU()), *inner, nn.Linear(128, 10)]


class Prepared(NamedTuple):
    """What a library has prepared for one rank."""

    model: nn.Module
    optimizer: Any
    loader: DataLoader[Any]
    backward: Callable[[Tensor], None] = Tensor.backward
    each_batch: Callable[[], AbstractContextManager[Any]] = nullcontext


def ddp(data: Dataset[Any], device: torch.device) -> Prepared:
    """PyTorch's DistributedDataParallel."""
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*make_blocks()).to(device))
    return Prepared(model, adam(model), DataLoader(data, 16, sampler=DistributedSampler(data)))


def fsdp(data: Dataset[Any], device: torch.device) -> Prepared:
    """PyTorch's fully sharded data parallelism, version 2: the weights of a block are whole only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    blocks = make_blocks()
    model = nn.Sequential(*blocks).to(device)
    for block in (*blocks, model):
        fully_shard(block, mesh=mesh)
    return Prepared(model, adam(model), DataLoader(data, 16, sampler=DistributedSampler(data)))


def accelerate(data: Dataset[Any], device: torch.device) -> Prepared:
    """Hugging Face Accelerate: bfloat16, and gradients accumulated over two batches."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=device.type == "cpu")
    model: nn.Module = nn.Sequential(*make_blocks())
    model, optimizer, loader = accelerator.prepare(model, adam(model), DataLoader(data, 8, shuffle=True))
    return Prepared(model, optimizer, loader, accelerator.backward, lambda: accelerator.accumulate(model))


def fabric(data: Dataset[Any], device: torch.device) -> Prepared:
    """Lightning Fabric."""
    from lightning_fabric import Fabric

    ranks, local_ranks = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    strategy = Fabric(accelerator=device.type, devices=local_ranks, num_nodes=ranks // local_ranks)
    strategy.launch()
    network = nn.Sequential(*make_blocks())
    model, optimizer = strategy.setup(network, adam(network))
    loader: Any = strategy.setup_dataloaders(DataLoader(data, 16, shuffle=True))
    return Prepared(model, optimizer, loader, strategy.backward)


LIBRARIES = {function.__name__: function for function in (ddp, fsdp, accelerate, fabric)}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a model's weights."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(library: str) -> float:
    """Train on handwritten digits with a library. Return the accuracy on the other digits."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    has_cuda = torch.cuda.device_count() >= local_ranks  # one device for each rank
    device = torch.device("cuda", local_rank) if has_cuda else torch.device("cpu")
    if has_cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    accuracy = fit(library, device)
    dist.destroy_process_group()
    return accuracy


def fit(library: str, device: torch.device) -> float:
    """Train on one rank."""
    data, held_out = load()
    model, optimizer, loader, backward, each_batch = LIBRARIES[library](data, device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine = [part[rank::ranks].to(device) for part in held_out[:]]
    accuracy = 0.0
    for epoch in range(1, 6):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        model.train()
        for x, y in loader:
            with each_batch():
                backward(nn.functional.cross_entropy(model(x.to(device)), y.to(device)))
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            right = (model(mine[0]).argmax(1) == mine[1]).sum()
        dist.all_reduce(right)
        accuracy = right.item() / len(held_out)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run plain distributed code on two workers.")
    parser.add_argument("library", nargs="?", choices=LIBRARIES, default="ddp", help="default: %(default)s")
    chosen = parser.parse_args().library
    if "RANK" in os.environ:  # torchrun started this process as one of its ranks
        train(chosen)
    else:
        print(f"held-out accuracy {maggy_like.run(train, {'library': chosen}, workers=2):.3f}")
