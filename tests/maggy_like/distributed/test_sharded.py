"""Sharded states go from any number of ranks to any other."""

from __future__ import annotations

import concurrent.futures
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed as dist
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from maggy_like.distributed import sharded
from maggy_like.distributed.parallel import ensure_process_group, prepare
from maggy_like.distributed.sharded import IncompleteStateError, ShardedStateError, ShardedStoreError, is_sharded
from maggy_like.protocol.messages import Assign, Checkpointed, RankInfo, decode_to_driver
from maggy_like.protocol.values import ReportError
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.failures import kind_of
from maggy_like.worker.child.saves import Saves
from maggy_like.worker.child.sender import Sender

State = dict[str, Any]


def make(seed: int, *, sharding: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))  # 7 and 3 divide by neither 2 nor 3
    if sharding:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 5)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> State:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, momenta = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": momenta, **more}


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """All numbers of a model and its optimizer."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    weights, momenta = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    moments = [value[name] for value in momenta["state"].values() for name in ("exp_avg", "exp_avg_sq", "step")]
    return [tensor.tolist() for tensor in (*weights.values(), *moments)]


def save_two(first: str, second: str) -> State:
    ensure_process_group()
    model, optimizer = make(0)
    seen: State = {"left as it is": prepare(model) is model}
    step(model, optimizer)
    saved = state_of(model, optimizer, step=1, curve=[0.5, 0.25], pair=(torch.arange(3), {4: "x"}))
    seen["sharded"] = [is_sharded(saved), is_sharded(([model.state_dict()], 3)), is_sharded([torch.zeros(2), "x"])]
    seen["first"] = whole(model, optimizer)
    one = sharded.save(first, saved)
    step(model, optimizer)  # while it is written
    seen["second"] = whole(model, optimizer)
    two = sharded.save(second, state_of(model, optimizer, step=2))
    seen["one at a time"] = one.is_written()
    two.wait()
    one.wait()
    with pytest.raises(FileExistsError, match="its own directory"):
        sharded.save(first, saved)
    return seen


def load_two(first: str, second: str) -> State:
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.tensor import DTensor

    ensure_process_group()
    model, optimizer = make(1)
    seen: State = {}
    into = state_of(model, optimizer, step=0, curve=[], pair=(torch.zeros(3, dtype=torch.int64), {}))
    weights = into["model"]["0.weight"]
    assert isinstance(weights, DTensor)
    loaded = sharded.load(first, into)
    seen["in place"] = loaded is into and loaded["model"]["0.weight"] is weights
    seen["rest"] = [loaded["step"], loaded["curve"], loaded["pair"][0].tolist(), loaded["pair"][1]]
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    seen["first"] = whole(model, optimizer)
    step(model, optimizer)
    seen["second"] = whole(model, optimizer)
    wider = {name: torch.zeros(9) for name in into["model"]}
    for wrong, message in (
        ({"model": into["model"], "step": 0}, "lacks optimizer.*state.0.weight.exp_avg, and has in addition nothing"),
        (state_of(model, optimizer, step=0, more=1), "lacks nothing, and has in addition more"),
        ({**state_of(model, optimizer), "model": wider, "step": 0}, "on rank 2, ValueError: Size mismatch"),
    ):
        with pytest.raises(ShardedStateError, match=message):
            sharded.load(second, wrong)
    return seen


def through_fsspec() -> State:
    ensure_process_group()
    state = {"a": torch.arange(4.0), "optimizer": {"state": {0: {"m": torch.ones(2)}, 1: {"n": 5}}}, "last": [1]}
    sharded.save("memory://states/1", state).wait()
    into = {"a": torch.zeros(4), "optimizer": {"state": {0: {"m": torch.zeros(2)}, 1: {"n": 0}}}, "last": [2, 3]}
    loaded = sharded.load("memory://states/1", into)
    with pytest.raises(IncompleteStateError):
        sharded.load("memory://states/2", into)
    fsspec.register_implementation("full", FullDisk)
    saving = sharded.save("full://states/3", state)
    with pytest.raises(ShardedStateError, match="full://states/3: on rank 0, OSError: no space left"):
        saving.wait()
    sharded.save("memory://states/4", state).wait()  # a failed save holds up none
    return {"a": loaded["a"].tolist(), "optimizer": str(loaded["optimizer"]), "last": loaded["last"]}


class FullDisk(MemoryFileSystem):  # type: ignore[misc]
    protocol = "full"

    def _open(self, *args: Any, **options: Any) -> Any:
        raise OSError("no space left")


def with_classes_of_a_script(url: str) -> Any:
    ensure_process_group()

    @dataclass
    class Progress:
        step: int

    sharded.save(url, {"a": torch.zeros(1), "progress": Progress(3)}).wait()
    return sharded.load(url, {"a": torch.zeros(1), "progress": None})["progress"].step


def fail_on_rank_1(directory: str) -> State:
    """Save four states; of the second, rank 1 cannot write its part."""
    ensure_process_group()
    rank = dist.get_rank()
    frames: list[bytes] = []
    sender = Sender(Assign(0, 1, {}, 9, rank_info=RankInfo(rank, 2, rank, 2, 0, 1)), frames.append)
    saves = Saves(CheckpointStore(directory), None, sender, 0, 1)
    weights = make(0)[0].state_dict()

    def save_and_report(step: int) -> None:
        saves.save({"model": weights, "step": step})
        concurrent.futures.wait([sharded._Pending.saving])  # type: ignore[list-item]
        saves.reported(step)
        dist.barrier()  # no rank has raised in its report, so all get here

    save_and_report(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 if rank == 1 else 1 << 40, limits[1]))
    save_and_report(2)
    with pytest.raises(ShardedStoreError, match="on rank 1, OSError") as raised:
        saves.save({"model": weights, "step": 3})
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    restored = saves.restore({"model": weights, "step": 0})["step"]
    save_and_report(4)
    told = [message for frame in frames if isinstance(message := decode_to_driver(frame), Checkpointed)]
    kind = kind_of(raised.value)
    return {"raised": str(raised.value), "kind": kind, "restored": restored, "told": [message.step for message in told]}


class Unpicklable:
    def __deepcopy__(self, memo: Any) -> Unpicklable:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


@pytest.fixture(scope="module")
def saved(run_ranks: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[State]]:
    directory = tmp_path_factory.mktemp("states")
    urls = [f"file://{directory}/1", str(directory / "2")]
    return urls, run_ranks(save_two, 2, *urls)


@pytest.mark.e2e
def test_saving_sees_the_state_as_it_was(saved: tuple[list[str], list[State]]) -> None:
    urls, ranks = saved
    for seen in ranks:
        assert seen["left as it is"]
        assert seen["sharded"] == [True, True, False]
        assert seen["one at a time"]
        assert seen["first"] != seen["second"]
    assert Path(urls[1]).stat().st_mode & 0o777 == 0o700


@pytest.mark.e2e
def test_three_ranks_go_on_from_what_two_saved(saved: tuple[list[str], list[State]], run_ranks: Any) -> None:
    urls, (before, _) = saved
    for seen in run_ranks(load_two, 3, *urls):
        assert seen["in place"]
        assert seen["rest"] == [1, [0.5, 0.25], [0, 1, 2], {4: "x"}]
        assert seen["first"] == before["first"]
        torch.testing.assert_close(
            [torch.tensor(it) for it in seen["second"]], [torch.tensor(it) for it in before["second"]]
        )


@pytest.mark.e2e
def test_one_process_without_a_group_loads_what_two_saved(saved: tuple[list[str], list[State]]) -> None:
    from torch.distributed.checkpoint.state_dict import set_state_dict

    urls, (before, _) = saved
    with torch.random.fork_rng(devices=[]):
        model, optimizer = make(2, sharding=False)
    loaded = sharded.load(urls[1], state_of(model, optimizer, step=0))
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert loaded["step"] == 2
    assert whole(model, optimizer) == before["second"]


@pytest.mark.e2e
def test_an_interrupted_save_is_not_loaded(saved: tuple[list[str], list[State]], tmp_path: Path) -> None:
    for file in Path(saved[0][1]).iterdir():
        if file.name != ".metadata":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(IncompleteStateError, match="has no complete state"):
        sharded.load(str(tmp_path), {})
    (tmp_path / ".metadata").write_bytes(Path(saved[0][1], ".metadata").read_bytes()[:-1])
    with pytest.raises(IncompleteStateError, match=r"has no complete state: \.metadata is damaged"):
        sharded.load(str(tmp_path), {})


@pytest.mark.e2e
def test_where_one_rank_cannot_write_all_raise_it_in_the_next_save(run_ranks: Any, tmp_path: Path) -> None:
    first, second = run_ranks(fail_on_rank_1, 2, str(tmp_path))
    assert first == {**second, "told": [1, 4]}
    assert second["kind"] == "store"  # uncounted: it runs again, on all ranks
    assert second["restored"] == 1
    assert second["told"] == []
    assert sorted(path.name for path in (tmp_path / "00000").iterdir()) == ["1-1.dcp", "1-3.dcp"]


@pytest.mark.e2e
def test_any_file_system(run_ranks: Any) -> None:
    [seen] = run_ranks(through_fsspec, 1)
    assert seen["a"] == [0, 1, 2, 3]
    assert seen["optimizer"] == "{'state': {0: {'m': tensor([1., 1.])}, 1: {'n': 5}}}"
    assert seen["last"] == [1]


@pytest.mark.e2e
def test_objects_of_a_script_s_own_classes(run_ranks: Any, tmp_path: Path) -> None:
    assert run_ranks(with_classes_of_a_script, 2, tmp_path.as_uri()) == [3, 3]


@pytest.mark.parametrize("act", [sharded.save, sharded.load])
def test_a_store_that_refuses_at_once_is_the_store_s_fault(tmp_path: Path, act: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShardedStoreError, match=r"file/1\.dcp.*NotADirectoryError"):
        act(str(tmp_path / "file" / "1.dcp"), {"a": torch.zeros(1)})


def test_what_cannot_be_pickled_is_told_at_once() -> None:
    with pytest.raises(ReportError, match=r"'b\.c' of the state given to checkpoint\(\) .*TypeError: no pickle"):
        sharded.save("memory://states", {"a": torch.zeros(1), "b": {"c": Unpicklable(), "d": torch.zeros(1)}})


def test_names_that_are_there_twice_are_told() -> None:
    with pytest.raises(ValueError, match=r"different names, got 'a\.b'"):
        sharded.save("memory://states", {"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)})


def test_plain_states_are_not_sharded() -> None:
    assert not is_sharded({"step": 3, "model": [torch.zeros(2), ({"x": None},)]})
