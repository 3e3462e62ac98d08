"""Data-parallel training in which the number of ranks changes nothing but the speed."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from maggy_like.worker.gang.loader import GlobalLoader, PrepareError, latest
from maggy_like.worker.gang.sharded import is_sharded


def device() -> torch.device:
    """This rank's device: of the visible CUDA devices the one of ``LOCAL_RANK``, or the CPU if there are none.

    Where each rank sees its own device alone, that is the first; ranks that are more than the devices share them.
    """
    count = torch.cuda.device_count()
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % count) if count else torch.device("cpu")


def ensure_process_group() -> None:
    """Make the default process group from torchrun's environment, unless there is one.

    It is NCCL's where every rank has a CUDA device of its own (with gloo for tensors on the CPU), else gloo's. The
    ranks tell each other the names of their devices first: two ranks that see one device each may see the same. Every
    rank must call it.

    Raises:
        ValueError: A variable of the environment is missing; torch names it.
    """
    if dist.is_initialized():
        return
    store, rank, ranks = next(rendezvous("env://"))
    mine = device()
    names = PrefixStore("maggy_like/devices", store)
    names.set(str(rank), str(torch.cuda.get_device_properties(mine).uuid) if mine.type == "cuda" else "")
    backend = choose_backend([name.decode() for name in names.multi_get([str(r) for r in range(ranks)])])
    if mine.type == "cuda":
        torch.cuda.set_device(mine)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def choose_backend(devices: Sequence[str]) -> str:
    """The backend for ranks with these CUDA devices.

    Args:
        devices: Unique name of each rank's CUDA device; empty where it has none.

    Example:
        >>> choose_backend(["GPU-1", "GPU-2"]), choose_backend(["GPU-1", "GPU-1"]), choose_backend(["", ""])
        ('cpu:gloo,cuda:nccl', 'gloo', 'gloo')
    """
    return "cpu:gloo,cuda:nccl" if all(devices) and len(set(devices)) == len(devices) else "gloo"


class DataParallel(DistributedDataParallel):
    """:class:`~torch.nn.parallel.DistributedDataParallel` that hides itself and weighs shares of uneven size.

    Parameters, buffers and states have the names of the plain module, and what the wrapper has not got is the module's:
    ``model.fc``. A state saved with n ranks loads with any number. (The functions of
    ``torch.distributed.checkpoint.state_dict`` know DDP by its prefix; give them ``model.module``.)

    Training code takes the mean of the loss over the batch it is given. Each backward multiplies its gradients, before
    they are added to ``.grad``, by ``samples of this rank * ranks / samples of the global batch``; DDP's mean over
    ranks is then the gradient of the mean over the global batch. What counts is the batch that a prepared loader
    yielded last before the last forward under grad: evaluation in between changes nothing. Without a prepared loader,
    all ranks weigh the same.

    Gradient accumulation is exact too, with ``no_sync()`` or without, as every backward weighs its own gradients. Only
    where all shares are of one size are these exact: one backward over the losses of several batches, and batches
    of several loaders at once. A loss that is a sum over samples becomes the sum over the global batch divided by the
    ranks. Batch normalisation sees this rank's share (``nn.SyncBatchNorm`` sees all), and dropout draws from the rank's
    stream.

    Args:
        module: The module, on this rank's device.
        **options: Those of ``DistributedDataParallel``, such as ``find_unused_parameters=True``.

    Raises:
        RuntimeError: In the first backward, if the model itself was never called, but a method of the module: its
            gradients would not be averaged, and the ranks would drift apart.
    """

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self._weight = 1.0
        self._called = False
        self._weigh_gradients()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._weight = latest.share.weight
            self._called = True
        return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_buffers(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):  # not there yet; copy and pickle mean the wrapper
                raise
            return getattr(self.module, name)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._weigh_gradients()  # copied parameters have no hooks

    def _weigh_gradients(self) -> None:
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._weigh)

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self._called and self.require_backward_grad_sync:
            raise RuntimeError(
                f"backward() through a method of {type(self.module).__name__}, while the prepared model itself was not "
                "called: the gradients would not be averaged over the ranks; compute the loss from model(...)"
            )
        if self._weight == 1:
            return None
        return gradient * self._weight if self._weight else torch.zeros_like(gradient)  # 0 * inf is NaN


def prepare(*objects: Any) -> Any:
    """Make what a training function has made fit for this rank and its device.

    - A module is moved to the device, and with several ranks becomes a :class:`DataParallel`. One with nothing to train
      is given rank 0's values. One that is sharded already (by ``fully_shard``, say) comes back as it is, and its
      gradients are not weighed: use batches that divide by the number of ranks.
    - An optimizer comes back itself, with its state on the device.
    - A loader becomes a :class:`~maggy_like.worker.gang.loader.GlobalLoader`: its batch size is that of all ranks
      together, so that it means the same for any number of them.
    - Anything else, a learning-rate schedule say, comes back itself.

    With one rank on the CPU everything comes back as it is. With several, every rank must call it with the same kinds
    of objects; it makes the process group if there is none.

    Returns:
        The objects in the order given; a single one by itself.

    Raises:
        PrepareError: An object cannot be prepared as it is.

    Example:
        >>> prepare(3, "schedule")
        (3, 'schedule')
    """
    ranks = world_size()
    if ranks > 1:
        ensure_process_group()
    target = device()
    if ranks > 1 or target.type != "cpu":
        modules = {id(it): _prepare_module(it, target, ranks) for it in objects if isinstance(it, nn.Module)}
        objects = tuple(modules[id(it)] if id(it) in modules else _prepare_other(it, target, ranks) for it in objects)
    return objects[0] if len(objects) == 1 else objects


def average(values: Mapping[str, SupportsFloat], weight: float = 1.0) -> dict[str, float]:
    """Weighted means over the ranks, in one all-reduce; every rank must call it with the same names.

    Args:
        values: Numbers or tensors of one element by name. A NaN makes its mean NaN.
        weight: What this rank's values count for, not negative: the samples they are means over, say. With 0 they do
            not count, whatever they are. If all weights are 0, the means are NaN.

    Raises:
        ValueError: The weight is negative or not finite, or the ranks gave different names.

    Example:
        >>> average({"loss": 0.5})
        {'loss': 0.5}
    """
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"weight must be a finite number that is not negative, got {weight!r}")
    names = sorted(values)
    # Sums say whether all ranks gave the same names: only then is each rank's checksum the mean of all.
    checksum = float(zlib.crc32("\n".join(names).encode()))
    numbers = [1.0, checksum, weight, *(float(values[name]) * weight if weight else 0.0 for name in names)]
    if world_size() > 1:
        ensure_process_group()
        on_cpu = "cpu:" in dist.get_backend_config()
        sums = torch.tensor(numbers, dtype=torch.float64, device="cpu" if on_cpu else device())
        dist.all_reduce(sums)
        numbers = sums.tolist()
    ranks, checksums, weights, *totals = numbers
    if checksums != ranks * checksum:
        raise ValueError(f"the ranks average different names; this one has {', '.join(names) or 'none'}")
    means = {name: total / weights if weights else math.nan for name, total in zip(names, totals, strict=True)}
    return {name: means[name] for name in values}


def world_size() -> int:
    """Number of ranks, of the process group or else of torchrun's environment."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def _prepare_module(module: nn.Module, target: torch.device, ranks: int) -> nn.Module:
    if isinstance(module, DataParallel) or is_sharded(list(module.parameters())):
        return module
    if isinstance(module, DistributedDataParallel):
        raise PrepareError(
            "the model is wrapped by DistributedDataParallel already; give prepare() the plain module, or wrap it with "
            "maggy_like.worker.gang.parallel.DataParallel(module, ...) where DDP needs options"
        )
    module.to(target)
    if ranks == 1:
        return module
    if any(parameter.requires_grad for parameter in module.parameters()):
        return DataParallel(module)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor, src=0)
    return module


def _prepare_other(it: Any, target: torch.device, ranks: int) -> Any:
    if isinstance(it, Optimizer):
        _check_optimizer(it, target)
        if any(
            isinstance(value, torch.Tensor) and value.dim() and value.device != parameter.device
            for parameter, state in it.state.items()
            for value in state.values()
        ):
            it.load_state_dict(it.state_dict())  # moves what was restored on the CPU to where the parameters went
    elif isinstance(it, DataLoader) and not isinstance(it, GlobalLoader):
        return GlobalLoader(it, target, dist.get_rank() if ranks > 1 else 0, ranks)
    return it


def _check_optimizer(optimizer: Optimizer, target: torch.device) -> None:
    """Refuse an optimizer of parameters that are not where the models are.

    Raises:
        PrepareError: It has a parameter elsewhere.
    """
    elsewhere = {str(p.device) for group in optimizer.param_groups for p in group["params"] if p.device != target}
    if elsewhere:
        raise PrepareError(
            f"{type(optimizer).__name__} has parameters on {', '.join(sorted(elsewhere))} and not on {target}: give "
            "prepare() their model too, and make the optimizer from the parameters of that very model"
        )
