"""Functions and classes that travel by value keep their file, whichever cloudpickle is installed."""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import subprocess
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch

from maggy_like.driver.proposers import pack, unpack
from maggy_like.ml.estimator.params import pickled
from maggy_like.processes.pickles import dumps
from maggy_like.spark.engine.task import Sent
from maggy_like.train_function.pickling import pickle_train_fn

CELL = """
class Box:
    def method(self):
        return lambda: 1

def train(x):
    def inner():
        return 1 / x  # the line to be seen
    return inner()
"""


def _hidden(code: types.CodeType) -> tuple[Any, ...]:
    """Reduce code as cloudpickle 3.1.3 does."""
    kind, arguments = _AS_INSTALLED(code)
    return kind, tuple("<dynamic-code>" if it is code.co_filename else it for it in arguments)


_AS_INSTALLED = cloudpickle.Pickler.dispatch_table[types.CodeType]


@pytest.fixture(params=[_AS_INSTALLED, _hidden], ids=["installed", "3.1.3"])
def main(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A ``__main__`` of a notebook with one cell, with a cloudpickle as installed, and with one that hides files."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, types.CodeType, request.param)
    monkeypatch.setitem(linecache.cache, "<cell>", (len(CELL), None, CELL.splitlines(keepends=True), "<cell>"))
    exec(compile(CELL, "<cell>", "exec"), vars(module))
    return module


SENT: dict[str, Callable[[Any], Any]] = {
    "any": lambda value: pickle.loads(dumps(value)),
    "the training function": lambda value: pickle.loads(pickle_train_fn(value)),
    "an optimizer's": lambda value: unpack(pack(value)),
    "what is saved": lambda value: pickle.loads(pickled("decode", value)),
    "Spark's": lambda value: pickle.loads(cloudpickle.dumps(Sent(value, "cannot serve"))),
}


@pytest.mark.parametrize("send", SENT.values(), ids=SENT)
def test_a_function_keeps_its_file_and_its_source(main: types.ModuleType, send: Callable[[Any], Any]) -> None:
    train = send(main.train)
    assert train is not main.train
    assert inspect.getsource(train) == CELL[CELL.index("def train") :]
    with pytest.raises(ZeroDivisionError) as raised:
        train(0)
    assert "return 1 / x  # the line to be seen" in "".join(traceback.format_exception(raised.value))


def test_so_do_the_methods_of_a_class_and_the_functions_in_them(main: types.ModuleType) -> None:
    source = dumps(main.Box)
    main.Box.method.__code__ = (lambda self: None).__code__  # the class that comes back is this one, as it was sent
    box = pickle.loads(source)
    assert inspect.getsource(box.method).startswith("    def method")
    assert box().method().__code__.co_filename == "<cell>"


TENSORS = {
    "empty": torch.zeros(0),
    "a part of its memory": torch.arange(10)[3:],
    "transposed": torch.arange(12.0).reshape(3, 4).t(),
    "no type of numpy": torch.ones(3, dtype=torch.bfloat16),
    "trained": torch.ones(3, requires_grad=True),
    "a parameter": torch.nn.Parameter(torch.ones(2, 2)),
    "booleans": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "without dimensions": torch.tensor(4.5, dtype=torch.float64),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_come_back_as_they_were(name: str) -> None:
    tensor = TENSORS[name]
    back = pickle.loads(dumps(tensor))
    assert type(back) is type(tensor)
    assert (back.dtype, back.layout, back.requires_grad) == (tensor.dtype, tensor.layout, tensor.requires_grad)
    assert torch.equal(back.detach().to_dense(), tensor.detach().to_dense())
    if tensor.layout is torch.strided:
        assert (back.stride(), back.storage_offset()) == (tensor.stride(), tensor.storage_offset())


def test_the_memory_of_a_tensor_is_written_once() -> None:
    assert len(dumps(torch.zeros(1_000_000))) < 4_000_000 + 1000


def test_a_tensor_that_came_back_can_grow() -> None:
    back = pickle.loads(dumps(torch.arange(3.0)))
    back += 1.0
    assert back.resize_(5)[:3].tolist() == [1.0, 2.0, 3.0]


def test_a_tensor_without_memory_is_left_to_torch() -> None:
    back = pickle.loads(dumps(torch.empty(3, device="meta")))
    assert back.device.type == "meta"


def test_what_a_module_without_a_place_has_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as that of ``runpy.run_path``, or one that a notebook has made."""
    module = types.ModuleType("of_no_file")
    with monkeypatch.context() as present:
        present.setitem(sys.modules, "of_no_file", module)
        exec("class Box:\n    size = 3\ndef train(): return Box().size", vars(module))
        data = dumps(module.train)
    assert "of_no_file" not in sys.modules
    assert pickle.loads(data)() == 3


REGISTERED = """
import os, sys
import keras, torch
from maggy_like.processes.pickles import dumps

@keras.saving.register_keras_serializable("mine")
class Scale(keras.layers.Layer):
    pass

class Plain:
    def get_config(self): return {}

torch.serialization.add_safe_globals([Plain])
keras.saving.get_custom_objects()["plain"] = Plain
sys.stdout.buffer.write(dumps(lambda: (Scale, Plain)))
"""

LOADED = """
import pickle, sys
scale, plain = pickle.load(sys.stdin.buffer)()
import keras, torch
print(keras.saving.get_registered_name(scale), keras.saving.get_registered_object("mine>Scale") is scale)
print(keras.saving.get_custom_objects()["plain"] is plain, plain in torch.serialization.get_safe_globals())
"""


@pytest.mark.long
@pytest.mark.e2e
def test_what_a_script_has_registered_with_a_library_is_registered_where_it_is_loaded() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    sent = subprocess.run([sys.executable, "-c", REGISTERED], stdout=subprocess.PIPE, check=True, env=environment)
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED], input=sent.stdout, stdout=subprocess.PIPE, check=True, env=environment
    )
    assert loaded.stdout.decode().split() == ["mine>Scale", "True", "True", "True"]
