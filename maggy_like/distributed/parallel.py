"""Data-parallel training in which the number of ranks changes only the speed."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from maggy_like.distributed.ddp import DataParallel, not_averaged, wrapper_of, wrappers_of
from maggy_like.distributed.loader import GlobalLoader, PrepareError, Shareable
from maggy_like.distributed.rendezvous import meeting, returned_ranks
from maggy_like.distributed.sharded import is_sharded

USUAL_WAIT = timedelta(seconds=10)
"""Time in which ranks usually meet."""

EXCHANGE_WAIT = timedelta(seconds=1)
"""Time after which a rank that waits in an average looks which others have returned."""

LONGEST_WAIT = timedelta(minutes=30)
"""Time after which a missing rank counts as gone."""


def device() -> torch.device:
    """Return this rank's device: the visible CUDA device of ``LOCAL_RANK``, or the CPU if there is none.

    If each rank sees only its own device, that is the first one. If there are more ranks than devices, they share
    them.
    """
    count = torch.cuda.device_count()
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count) if count else torch.device("cpu")


def ensure_process_group() -> None:
    """Create the default process group from torchrun's environment, unless there is one.

    The backend is NCCL if every rank has its own CUDA device (with gloo for tensors on the CPU), otherwise gloo. The
    ranks first exchange the names of their devices, because two ranks that see one device each may see the same. Every
    rank must call this. RuntimeError is raised if a rank has returned without calling it, or does not call it for half
    an hour.
    """
    if dist.is_initialized():
        return
    store, rank, ranks = next(rendezvous("env://"))
    mine = device()
    names = PrefixStore("maggy_like/devices", store)
    names.set(str(rank), str(torch.cuda.get_device_properties(mine).uuid) if mine.type == "cuda" else "")
    _wait_for_all(names, store, ranks)
    backend = choose_backend([name.decode() for name in names.multi_get([str(r) for r in range(ranks)])])
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def _wait_for_all(names: Store, store: Store, ranks: int) -> None:
    """Wait until every rank has sent its device, or one of them has returned."""
    keys = [str(rank) for rank in range(ranks)]
    if _wait_for(names, keys, USUAL_WAIT):
        return
    deadline = time.monotonic() + LONGEST_WAIT.total_seconds()
    while not names.check(keys):
        missing = [rank for rank in range(ranks) if not names.check([str(rank)])]
        if gone := [rank for rank in returned_ranks(store, ranks) if rank in missing]:
            raise RuntimeError(
                f"all ranks must call prepare() or average(), and rank {', '.join(map(str, gone))} returned without a "
                "call"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"all ranks must call prepare() or average() at about the same time, and rank "
                f"{', '.join(map(str, missing))} did not within {LONGEST_WAIT}"
            )
        time.sleep(0.1)


def _wait_for(store: Store, keys: list[str], timeout: timedelta) -> bool:
    """Wait until the keys are set, and return whether they were in time. ``Store.wait`` prints warnings if not."""
    since = time.monotonic()
    while not store.check(keys):
        waited = time.monotonic() - since
        if waited > timeout.total_seconds():
            return False
        time.sleep(min(max(waited / 8, 0.0005), 0.1))
    return True


def choose_backend(devices: Sequence[str]) -> str:
    """Return the backend for ranks with CUDA devices of these unique names, each empty if the rank has no device."""
    return "cpu:gloo,cuda:nccl" if all(devices) and len(set(devices)) == len(devices) else "gloo"


def prepare(*objects: Any, ranks: int | None = None, find_unused_parameters: bool = False) -> Any:
    """Prepare models, optimizers and loaders for this rank and its device.

    - A module is moved to the device, and with several ranks becomes a
      :class:`~maggy_like.distributed.ddp.DataParallel` with ``find_unused_parameters``. A module with nothing to train
      receives rank 0's values. A module that is sharded already (for example by ``fully_shard``) is returned
      unchanged, and its gradients are not weighted: use batch sizes that are divisible by the number of ranks.
    - An optimizer is returned itself, with its state on the device. With several ranks, its steps check that all its
      parameters belong to prepared or sharded models, because others would drift apart.
    - A loader becomes a :class:`~maggy_like.distributed.loader.GlobalLoader`. Its batch size is that of all ranks
      together, so that it has the same meaning for any number of ranks. A :class:`maggy_like.ml.ParquetLoader`
      distributes itself.
    - Any other object, such as a learning rate schedule, is returned itself.

    With one rank on the CPU, all objects are returned unchanged. With several ranks, every rank must call it with the
    same kinds of objects. It creates the process group if there is none. Without ``ranks``, their number is that of the
    process group, or of torchrun's environment. Several objects are returned in the given order, and one by itself. An
    object that cannot be prepared, or a step of an optimizer that fails its check, raises PrepareError.
    """
    for it in objects:
        _check_no_container(it)
    ranks = world_size() if ranks is None else ranks
    if ranks > 1:
        ensure_process_group()
    target = device()
    if ranks > 1 or target.type != "cpu":
        modules = {
            id(it): _prepare_module(it, target, ranks, find_unused_parameters)
            for it in objects
            if isinstance(it, nn.Module)
        }
        objects = tuple(modules[id(it)] if id(it) in modules else _prepare_other(it, target, ranks) for it in objects)
    return objects[0] if len(objects) == 1 else objects


def average(values: Mapping[str, SupportsFloat], weight: float = 1.0) -> dict[str, float]:
    """Return weighted means over the ranks; every rank must call it equally often, with the same names.

    The values are numbers or tensors of one element. A NaN makes its mean NaN. ``weight`` is that of this rank's
    values, at least 0, such as the number of samples that they are means over. With 0 they do not count, even if they
    are NaN. If all weights are 0, the means are NaN. ValueError is raised if a weight is not valid or, on all ranks, if
    they passed different names. RuntimeError is raised if a rank has returned without the call.
    """
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"weight must be a finite number of at least 0, got {weight!r}")
    mine = weight, {name: float(value) for name, value in values.items()}
    shares = [mine]
    if world_size() > 1:
        ensure_process_group()
        with meeting("average()"):
            shares = [json.loads(it) for it in _exchange(json.dumps(mine))]
        names = [sorted(share) for _, share in shares]
        other = next((rank for rank, given in enumerate(names) if given != names[0]), None)
        if other is not None:
            lists = " and ".join(f"{', '.join(names[rank]) or 'none'} on rank {rank}" for rank in (0, other))
            raise ValueError(f"average() must get the same names on all ranks, got {lists}; pass them on every rank")
    total = sum(weight for weight, _ in shares)

    def mean(name: str) -> float:
        return sum(share[name] * weight for weight, share in shares if weight) / total if total else math.nan

    return {name: mean(name) for name in values}


_calls = itertools.count()
"""Numbers the exchanges of this process."""


def _exchange(mine: str) -> list[str]:
    """Return the texts that all ranks pass in their calls of the same number.

    They meet in the store, since a collective of different sizes would abort the processes. If one does not come for
    long, it may be in a collective operation that ours never joins. Then all ranks of this call make one of a fixed
    size, which shows the mismatch.
    """
    store: Store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    rank, ranks, call = dist.get_rank(), dist.get_world_size(), next(_calls)
    keys = [f"maggy_like/average/{call}/{it}" for it in range(ranks)]
    store.set(keys[rank], mine)
    since, is_late = time.monotonic(), False
    while True:
        if _wait_for(store, keys, EXCHANGE_WAIT):
            break
        missing = [it for it in returned_ranks(store, ranks) if not store.check([keys[it]])]
        if missing:
            raise RuntimeError(
                f"all ranks must call average() equally often, and rank {', '.join(map(str, missing))} returned after "
                f"fewer calls than the {call + 1} of rank {rank}"
            )
        if time.monotonic() - since > USUAL_WAIT.total_seconds():
            is_late = True
            break
    way = f"maggy_like/average/{call}/way"
    if store.compare_set(way, "", "collective" if is_late else "store") == b"collective":  # the first to ask decides
        on_cpu = "cpu:" in dist.get_backend_config()
        dist.all_reduce(torch.zeros(4, dtype=torch.float64, device="cpu" if on_cpu else device()))
    store.wait(keys, LONGEST_WAIT)
    texts = [it.decode() for it in store.multi_get(keys)]
    if call:  # all ranks have read what is of the last one: they are in this call
        store.delete_key(f"maggy_like/average/{call - 1}/{rank}")
        if rank == 0:
            store.delete_key(f"maggy_like/average/{call - 1}/way")
    return texts


def world_size() -> int:
    """Return the number of ranks of the process group, or of torchrun's environment."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def _prepare_module(module: nn.Module, target: torch.device, ranks: int, find_unused_parameters: bool) -> nn.Module:
    if isinstance(module, DataParallel) or is_sharded(list(module.parameters())):
        return module
    if isinstance(module, DistributedDataParallel):
        raise PrepareError(
            "prepare() must get the original module, got one wrapped by DistributedDataParallel; unwrap it, or use "
            "maggy_like.distributed.ddp.DataParallel(module, ...) to pass options of DDP"
        )
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise PrepareError(
            "prepare() must not get a FullyShardedDataParallel model, which averages gradients itself; leave it and "
            "its optimizer out, or shard it by torch.distributed.fsdp.fully_shard"
        )
    module.to(target)
    if ranks == 1:
        return module
    if trained := [parameter for parameter in module.parameters() if parameter.requires_grad]:
        if (wrapper := wrapper_of(module)) is not None:
            return wrapper
        if len(not_averaged(trained)) < len(trained):
            raise PrepareError(
                f"parts of this {type(module).__name__} belong to a model that is prepared already, so their gradients "
                "would be averaged twice; prepare the whole model once"
            )
        return DataParallel(module, find_unused_parameters=find_unused_parameters)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor, src=0)
    return module


def _prepare_other(it: Any, target: torch.device, ranks: int) -> Any:
    if isinstance(it, Optimizer):
        _check_device(it, target)
        if ranks > 1:
            _watch(it)
        if any(
            isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device
            for parameter, state in it.state.items()
            for value in state.values()
        ):
            it.load_state_dict(it.state_dict())  # moves what was restored on the CPU to where the parameters went
    elif isinstance(it, DataLoader) and not isinstance(it, GlobalLoader):
        return GlobalLoader(it, target, dist.get_rank() if ranks > 1 else 0, ranks)
    elif isinstance(it, Shareable):
        return it.share_out(target, dist.get_rank() if ranks > 1 else 0, ranks)
    return it


def _check_no_container(it: Any) -> None:
    """Reject a list, tuple or dict of objects to prepare, also with one worker, where it would not matter."""
    parts = it.values() if isinstance(it, dict) else it if isinstance(it, list | tuple) else ()
    for part in parts:
        if isinstance(part, nn.Module | Optimizer | DataLoader | Shareable):
            unpacked = "*them.values()" if isinstance(it, dict) else "*them"
            raise PrepareError(
                f"prepare() must get objects one by one, got a {type(it).__name__} with a {type(part).__name__}; use "
                f"prepare({unpacked})"
            )


def _watch(optimizer: Optimizer) -> None:
    """Let the optimizer's steps check that the ranks do not drift apart.

    Each step first checks that the last backward was averaged. The owners of the parameters are checked before the
    first step, because models may be prepared after their optimizer, and whenever the set of trained parameters
    changes.
    """
    checked: list[int] = []
    wrappers: list[DataParallel] = []

    def check(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal checked, wrappers
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if [id(p) for p in trained] == checked:
            for wrapper in wrappers:
                wrapper.check_finished()
            return
        others = [p for p in not_averaged(trained) if not is_sharded([p])]
        if others:
            shapes = ", ".join(str(tuple(p.shape)) for p in others[:3])
            raise PrepareError(
                f"{type(optimizer).__name__} must train parameters of prepared models, got {len(others)} others "
                f"(shapes: {shapes}{', ...' * (len(others) > 3)}); prepare their model too, put single parameters "
                "into a module, or leave the optimizer out of prepare()"
            )
        checked, wrappers = [id(p) for p in trained], wrappers_of(trained)
        for wrapper in wrappers:
            wrapper.check_finished()

    optimizer.register_step_pre_hook(check)


def _check_device(optimizer: Optimizer, target: torch.device) -> None:
    """Reject an optimizer whose parameters are not on the device of the models."""
    elsewhere = {str(p.device) for group in optimizer.param_groups for p in group["params"] if p.device != target}
    if elsewhere:
        raise PrepareError(
            f"{type(optimizer).__name__} must have its parameters on {target}, got {', '.join(sorted(elsewhere))}; "
            "prepare their model too, and create the optimizer from the parameters of that model"
        )
