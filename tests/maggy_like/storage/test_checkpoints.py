"""States of any kind, read back by another process."""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch

from maggy_like.protocol.state_names import SHARDED
from maggy_like.protocol.values import ReportError
from maggy_like.storage import checkpoints
from maggy_like.storage.checkpoints import CheckpointStore, load_state, save_state
from maggy_like.storage.file_systems import puts_whole
from maggy_like.storage.local_files import LocalFiles


def save(directory: Path, state: Any) -> Path:
    store = CheckpointStore(directory.as_uri())
    name = store.next_name(1)
    store.save(name, state)
    return directory / name


def test_a_class_of_a_script_is_read_by_another_process(tmp_path: Path) -> None:
    @dataclass
    class State:
        step: int

        def twice(self) -> int:
            return 2 * self.step

    file = save(tmp_path, {"state": State(3), "rate": lambda step: step / 10})
    code = f"import pickle; it = pickle.load(open({str(file)!r}, 'rb')); print(it['state'].twice(), it['rate'](1))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "6 0.1\n"


def test_the_process_that_has_the_class_gets_its_own(tmp_path: Path) -> None:
    @dataclass
    class State:
        step: int

    assert load_state(save(tmp_path, State(3)).as_uri()) == State(3)


def test_a_notebook_s_own_class_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Net:
        def forward(self) -> int:
            return 1

    Net.__module__ = "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "Net", Net, raising=False)
    forward = Net.forward
    assert type(load_state(save(tmp_path, Net()).as_uri())) is Net
    assert Net.forward is forward


@pytest.mark.e2e
@pytest.mark.cold
def test_plain_states_are_read_without_this_package(tmp_path: Path) -> None:
    file = save(tmp_path, {"step": 3, "model": OrderedDict(weight=torch.arange(3.0))})
    weight = f"pickle.load(open({str(file)!r}, 'rb'))['model']['weight']"
    code = f"import pickle, sys; print({weight}, 'maggy_like' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "tensor([0., 1., 2.]) False\n"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (threading.Lock, r"\(TypeError: cannot pickle '_thread.lock' object\)"),
        (lambda: iter(x for x in "ab"), r"\(TypeError: cannot pickle 'generator' object\)"),
    ],
)
def test_what_cannot_be_saved_is_told(tmp_path: Path, make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ReportError, match=rf"the state given to checkpoint\(\) cannot be saved {message}; leave out"):
        save(tmp_path, {"x": make()})
    with pytest.raises(ReportError, match=rf"what the function returned cannot be saved {message}; leave out"):
        save_state((tmp_path / "returned.pkl").as_uri(), [make()])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("step", ["write_file", "mv"])
def test_a_write_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*args: Any) -> None:
        Path(args[1]).touch()
        raise OSError("no space left")

    monkeypatch.setattr(*((checkpoints, step) if step == "write_file" else (LocalFiles, step)), fail)
    with pytest.raises(OSError, match="no space left"):
        save_state((tmp_path / "returned.pkl").as_uri(), "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../secret.pkl", "file:///secret.pkl", "00000/../secret.pkl", "secret.pkl"])
def test_what_names_no_state_is_neither_read_nor_removed(tmp_path: Path, name: str) -> None:
    """Not even on the word of a driver, whose journal somebody may have edited."""
    secret = tmp_path / "secret.pkl"
    save_state(secret.as_uri(), "unpickled")
    store = CheckpointStore((tmp_path / "store").as_uri(), 0, (name, name.replace("/secret.pkl", str(secret))))
    with pytest.raises(ValueError, match="the name of a checkpoint must be like"):
        store.load(name)
    with pytest.raises(ValueError, match="the name of a checkpoint must be like"):
        store.save(name, "overwritten")
    store.tidy()
    assert load_state(secret.as_uri()) == "unpickled"


def test_a_trial_removes_its_own_states_alone(tmp_path: Path) -> None:
    stores = [CheckpointStore(tmp_path.as_uri(), trial, ("00000/1-1.pkl", "00001/1-1.pkl")) for trial in range(2)]
    for store in stores:
        store.save(store.next_name(1), "state")
    stores[1].tidy()
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")] == ["00000/1-1.pkl"]
    assert stores[1].load("00000/1-1.pkl") == "state"  # a trial may start from another's


def test_states_are_removed_until_the_store_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path.as_uri())
    whole, sharded, gone = store.next_name(1), store.next_name(1, SHARDED), store.next_name(1)
    store.save(whole, "state")
    (tmp_path / sharded).mkdir()
    (tmp_path / sharded / "part").touch()
    tried = []

    def refuse(_: Any, path: str) -> None:
        tried.append(path)
        raise ConnectionRefusedError("no endpoint")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "rm_file", refuse)
        store.remove_later(whole)
        store.remove_later(gone)
        store.tidy()
    assert [Path(path).name for path in tried] == [Path(gone).name]  # asked once, since each try takes seconds
    store.remove_later(sharded)
    store.tidy()
    assert not list((tmp_path / whole).parent.iterdir())


@pytest.mark.slow
def test_an_object_store_gets_a_state_and_loses_it_in_one_request_each(
    object_store: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_store.items():
        monkeypatch.setenv(name, value)
    s3fs = pytest.importorskip("s3fs")
    url = f"s3://runs/{uuid.uuid4().hex}"
    store = CheckpointStore(url, 3)
    names = [store.next_name(1) for _ in range(2)]
    requests: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def counted(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        requests.append(method)
        return await call(fs, method, *args, **kwargs)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    for name in names:
        store.save(name, "state")
    assert requests == ["put_object"] * 2
    store.remove_later(names[0])
    store.tidy()
    assert requests[2:] == ["delete_object"]
    assert store.load(names[1]) == "state"
    assert [file.rpartition("/")[2] for file in fsspec.filesystem("s3").find(url)] == ["1-2.pkl"]


@pytest.mark.parametrize("protocol", ["file", "memory", "sftp", ("hdfs", "arrow_hdfs")])
def test_other_file_systems_get_a_state_under_its_name_once_it_is_whole(protocol: Any) -> None:
    assert not puts_whole(SimpleNamespace(protocol=protocol))
