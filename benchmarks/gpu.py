"""Trials that share one CUDA device: memory given back, an NCCL group of one, and trials per hour side by side.

Needs a CUDA device; says so and ends where there is none. Each trial trains a network on made images, a fixed number of
steps.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import maggy_like
from benchmarks.common import parser, publish
from maggy_like import Float, LocalEngine, Reporter, lagom

SIDE_BY_SIDE = (1, 2, 4, 8)


def train(lr: float, reporter: Reporter) -> float:
    """A network that is small for the device, as most that are searched for are."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    images = torch.randn(512, 3, 32, 32, device="cuda")
    labels = torch.randint(10, (512,), device="cuda")
    layers = [
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 28 * 28, 10),
    ]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(1, reporter.budget + 1):
        for _ in range(20):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        reporter.report(loss=loss.item(), step=step)
    return loss.item()


def nccl_of_one(reporter: Reporter) -> str:
    """Reduce over one rank; the backend that was chosen for the device."""
    import torch

    torch.distributed.init_process_group("nccl", rank=0, world_size=1, store=torch.distributed.HashStore())
    ones = torch.ones(4, device=reporter.device)
    torch.distributed.all_reduce(ones)
    torch.distributed.destroy_process_group()
    return f"{ones.sum().item():g} on {reporter.device}"


def used_memory() -> float:
    """MiB of the first device that are in use by any process."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def search(workers: int, n_trials: int, budget: int, folder: Path) -> float:
    """Trials per hour with so many of them side by side, start-up included."""
    result = lagom(
        train,
        {"lr": Float(1e-4, 1e-2, log=True)},
        optimizer="random",
        metric="loss",
        direction="min",
        n_trials=n_trials,
        max_budget=budget,
        workers=workers,
        engine=LocalEngine(["0"], gpu_fraction=1 / workers),
        directory=folder,
        progress=False,
    )
    if result.failures:
        raise SystemExit(f"trials failed: {result}")
    return 3600 * n_trials / result.seconds


def main() -> None:
    options = parser(__doc__).parse_args()
    if not torch.cuda.is_available() or shutil.which("nvidia-smi") is None:
        sys.exit("benchmarks.gpu needs a CUDA device and nvidia-smi")
    n_trials, budget = (8, 5) if options.quick else (16, 20)
    print(f"device: {torch.cuda.get_device_name(0)}")
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = LocalEngine(["0"])
        print(
            "NCCL with one rank:",
            maggy_like.run(nccl_of_one, workers=1, engine=engine, directory=folder, progress=False),
        )
        before = used_memory()
        for workers in SIDE_BY_SIDE:
            figures[f"trials_per_hour_{workers}"] = search(workers, n_trials, budget, folder)
            figures[f"memory_left_mib_{workers}"] = used_memory() - before
    publish(figures, options.json)


if __name__ == "__main__":
    main()
