"""``maggy_like.run_script``: scripts for torchrun, unchanged, on a gang."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torchrun import under_torchrun

from maggy_like import FailurePolicy, run_script
from maggy_like.command_line import main
from maggy_like.errors import TrainFunctionError, TrainingError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRAINING = """
import argparse, os, sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_iris
from torch.nn.parallel import DistributedDataParallel

from told import tell

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
epochs = parser.parse_args().epochs
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
x, y = (torch.tensor(each)[rank::world] for each in load_iris(return_X_y=True))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(epochs):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x.float()), y)
    loss.backward()
    optimizer.step()
mean = loss.detach().clone()
dist.all_reduce(mean)
if rank == 0:
    torch.save(model.module.state_dict(), "model.pt")
if __name__ == "__main__":
    tell(f"of {world}: {mean.item() / world!r} on {os.environ['LOCAL_RANK']}", sys.argv[1:])
sys.exit(0)
"""

SHARDED = """

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from told import tell


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x):
        return x + checkpoint(self.layers, x, use_reentrant=False)


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    for block in model[:2]:
        fully_shard(block)
    return fully_shard(model)


def main():
    dist.init_process_group("gloo")
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    rows = TensorDataset(x, x.sum(1, keepdim=True))
    sampler = DistributedSampler(rows, seed=2)
    loader = DataLoader(rows, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=True)
    model = make_model()
    for epoch in range(3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tell(f"epoch {epoch} rank {dist.get_rank()}: {loss.item()!r}")
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id="states")
        model = make_model()
        state = {"model": get_model_state_dict(model)}
        dcp.load(state, checkpoint_id="states")
        set_model_state_dict(model, state["model"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

# A line is one write: torchrun's ranks are unbuffered and share a pipe, where the words of two prints would mix.
TOLD = """
def tell(*words):
    print("told " + " ".join(map(str, words)) + "\\n", end="", flush=True)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The training, with a module beside it; the working directory is another one."""
    (tmp_path / "code").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "code" / "told.py").write_text(TOLD)
    (tmp_path / "code" / "train.py").write_text(TRAINING)
    return tmp_path / "code" / "train.py"


@pytest.mark.long
@pytest.mark.e2e
def test_a_script_runs_again_under_its_name_with_overwrite(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "script.py").write_text("print('told once')")
    arguments = ["run", "--workers", "1", "--name", "again", "--directory", str(tmp_path), str(tmp_path / "script.py")]
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert "overwrite=True to delete it and start over" in capfd.readouterr().err
    assert main([arguments[0], "--overwrite", *arguments[1:]]) == 0
    assert told(capfd.readouterr().out) == ["once"]


def told(text: str) -> list[str]:
    return sorted(re.findall(r"told (.*)", text))


@pytest.mark.long
@pytest.mark.e2e
def test_a_script_trains_as_under_torchrun(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = under_torchrun(script, "--epochs", 3).stdout
    model = Path("model.pt")
    saved = model.stat().st_mtime_ns
    capfd.readouterr()
    assert main(["run", "--workers", "2", str(script), "--epochs", "3"]) == 0
    out = capfd.readouterr().out
    assert told(out) == told(expected)  # the losses are the same to the last digit
    assert len(told(out)) == 2
    assert "[trial 0 rank 1] told of 2" in out
    assert model.stat().st_mtime_ns > saved  # where a script of torchrun writes it


@pytest.mark.long
@pytest.mark.e2e
def test_sharding_checkpoints_workers_of_loaders_and_autocast_train_as_under_torchrun(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SHARDED)
    expected = under_torchrun(script).stdout
    shutil.rmtree("states")
    capfd.readouterr()
    assert main(["run", "--workers", "2", str(script)]) == 0
    out = capfd.readouterr().out
    assert told(out) == told(expected)
    assert len(told(out)) == 6
    assert len(list(Path("states").glob("*.distcp"))) == 2


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os, sys\nsys.exit(3 if os.environ['RANK'] == '1' else 0)", r"^rank 1: bad.py called sys.exit\(3\)"),
        (
            "raise ValueError('the reason')",
            r"^rank \d: ValueError: the reason\n.*\n  File \".*bad.py\", line 1, in <mod",
        ),
    ],
)
def test_what_a_rank_dies_of_is_told(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "bad.py"
    script.write_text(text)
    once = FailurePolicy(max_attempts=1)
    with pytest.raises(TrainingError, match=message):
        run_script(script, workers=2, engine="local", failures=once, directory=tmp_path / "runs", progress=False)


@pytest.mark.spark
def test_tasks_of_spark_run_a_script(spark_local: SparkSession, tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "ranks = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(ranks)\n"
        "open(f'{sys.argv[1]}/{dist.get_rank()}', 'w').write(str(ranks.item()))\n"
    )
    (tmp_path / "seen").mkdir()
    run_script(script, [tmp_path / "seen"], workers=2, directory=tmp_path / "runs", progress=False)
    assert [(tmp_path / "seen" / rank).read_text() for rank in "01"] == ["3", "3"]


@pytest.mark.parametrize(
    ("path", "args", "message"),
    [
        ("none.py", [], "'none.py' cannot be read .No such file"),
        (".", [], "cannot be read .Is a directory"),
        ("broken.py", [], r"'broken.py' is not valid Python: .* line 1"),
        ("train.ipynb", [], "got the notebook 'train.ipynb'; use jupyter nbconvert --to script train.ipynb$"),
        ("broken.py", "--epochs 3", "args must be a list of arguments"),
        (len, [], "must be the path of a file, got .*; use run"),
    ],
)
def test_mistakes(path: Any, args: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("def f(:\n")
    Path("train.ipynb").write_text("{}")  # which Python can read, too
    with pytest.raises(TrainFunctionError, match=message):
        run_script(path, args)
