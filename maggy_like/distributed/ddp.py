"""DistributedDataParallel with the attributes of the original module."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from maggy_like.distributed.loader import latest

COMPARED_BACKWARDS = 2
"""Number of averaged backwards in which the ranks compare their weights: as loaded, and after an optimizer's step."""

ROUNDING = 1e-6
"""Difference between two ranks' sums of a parameter, relative to its absolute sum, that hardware may cause."""


class DataParallel(DistributedDataParallel):
    """:class:`~torch.nn.parallel.DistributedDataParallel` with the original names, and with weights for uneven shares.

    Parameters, buffers, parts and states have the names of the original module. Attributes that the wrapper lacks are
    the module's, to be read and set: ``model.fc``, ``model.temperature = 2``. So are the items of an
    ``nn.Sequential``, ``nn.ModuleList`` or ``nn.ModuleDict``: ``model[0]``. A state saved with n ranks loads with any
    number of ranks, and a pickle is that of the original module. (The functions of
    ``torch.distributed.checkpoint.state_dict`` recognize DDP by its prefix; pass them ``model.module``.)

    The training code takes the mean of the loss over the batch that it receives. Each backward multiplies its
    gradients, before they are added to ``.grad``, by ``samples of this rank * ranks / samples of the global batch``.
    DDP's mean over ranks is then the gradient of the mean over the global batch. The batch that counts is the one
    whose tensors the last forward under grad received, as a prepared loader yielded them. If it received other
    tensors, the batch that counts is the last one yielded by a loop over a prepared loader that has not ended. So
    evaluation in between and nested loops change nothing, and batches may be kept or drawn ahead. Without a prepared
    loader, all ranks have equal weights.

    Gradient accumulation is exact too, with or without ``no_sync()``, because every backward weights its own
    gradients. Two cases are exact only if all shares have the same size: one backward over the losses of several
    batches, and batches of several loaders at once. A loss that is a sum over samples becomes the sum over the global
    batch divided by the number of ranks. Batch normalization sees this rank's share (``nn.SyncBatchNorm`` sees all),
    and dropout draws from the rank's random stream.

    Parameters may be frozen and unfrozen between steps, on all ranks in the same way. DDP's reducer is then created
    again in the next forward under grad, without the hook of ``register_comm_hook``.

    Buffers are copied from rank 0 at the end of each backward in training mode, not before the next forward as in DDP.
    So all ranks evaluate with the buffers that rank 0 saves. A forward in evaluation mode does not communicate, so one
    rank may evaluate without the others.

    Args:
        **options: Options of ``DistributedDataParallel``, such as ``find_unused_parameters=True``.

    Raises:
        RuntimeError: In a backward, if DDP would not average gradients, so that the ranks would drift apart: only a
            method of the module was called and not the model, parameters were unfrozen between a forward and its
            backward, or it is a second backward after one forward. In the first two averaged backwards, if the ranks
            have different weights. Also if a part of the module is replaced.

    Example:
        >>> def train():
        ...     torch.distributed.init_process_group("gloo")
        ...     model = DataParallel(nn.Linear(2, 1), find_unused_parameters=True)
        ...     return [*model.state_dict()]  # the original names, without "module."
        >>> run(train, workers=2)
        ['weight', 'bias']
    """

    _built = False
    """Whether attributes that are set may be the module's, because all of DDP's exist by then."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self._weight = 1.0
        self._called = False
        self._waits = False  # a forward in training for its backward
        self._watched = False  # whether the present backward has been noticed
        self._syncs = False  # whether DDP averages what follows the last forward: each parameter's gradient once
        self._averaged: set[int] = set()  # the parameters whose gradients have come since
        self._buffers_due = False
        self._syncs_buffers = self.broadcast_buffers
        self.broadcast_buffers = False  # DDP would do so in evaluation as well
        self._begin()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            self._follow_frozen()
            self._weight = latest.share_of(args, kwargs).weight
            self._called = True
            self._watched = False
            self._syncs = self.require_backward_grad_sync
            if self._syncs:
                self._averaged.clear()
            if self.module.training and any(parameter.requires_grad for parameter in self._known):
                self._waits = True
                self._buffers_due = self._syncs_buffers and self.require_backward_grad_sync
        try:
            return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            _explain(error)
            raise

    def check_finished(self) -> None:
        """Raise RuntimeError if the last backward missed a trained parameter, so that DDP has averaged no gradients."""
        try:
            self._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            _explain(error)
            raise

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_buffers(*args, **kwargs)

    def named_modules(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Module]]:
        yield from self.module.named_modules(*args, **kwargs)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self.module.named_children()

    def children(self) -> Iterator[nn.Module]:
        yield self.module  # by which train(), apply() and to() reach it; its parts would be too little

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):  # not there yet; copy and pickle mean the wrapper
                raise
            return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._built or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
            return
        present = getattr(self.module, name, None)
        if value is not present and any(isinstance(it, nn.Module | nn.Parameter) for it in (value, present)):
            raise RuntimeError(
                f"{name} of a prepared {type(self.module).__name__} must not be replaced, because the gradients of the "
                "new one would not be averaged over the ranks; change the model before prepare()"
            )
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    # Python finds special methods only in the class. Those of an nn.Sequential and its like:

    def __getitem__(self, index: Any) -> Any:
        return self.module[index]

    def __len__(self) -> int:
        return len(self.module)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)

    def __contains__(self, item: Any) -> bool:
        return item in self.module

    def __bool__(self) -> bool:  # of a module without a length, too
        return bool(self.module)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        """Make a data-parallel copy, without communication."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = {**self.__getstate__(), "_built": False}  # type: ignore[no-untyped-call]
        twin.__setstate__(copy.deepcopy(state, memo))  # type: ignore[no-untyped-call]
        twin._begin()
        return twin

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the original module, which can be read without ranks and without this package."""
        return operator.getitem, ((self.module,), 0)

    def _begin(self) -> None:
        """Record the parameters; the last step of creating a wrapper or a copy."""
        self._known = list(self.module.parameters())
        self._trainable = [parameter.requires_grad for parameter in self._known]
        self._weighed: set[int] = set()
        self._averaged = set()
        self._compared = 0
        self._weigh_gradients()
        _wrappers.add(self)
        self._built = True

    def _follow_frozen(self) -> None:
        """Let DDP average exactly the trainable gradients, which it determines when its reducer is created.

        If nothing is trainable (a discriminator in the step of its generator), no gradient comes, and the reducer is
        kept. It is also kept while an earlier forward waits for its backward. If it then lacks a trainable parameter,
        RuntimeError is raised.
        """
        trainable = [parameter.requires_grad for parameter in self._known]
        if trainable == self._trainable or not any(trainable):
            return
        if not self._waits:
            self._trainable = trainable
            self._weigh_gradients()
            self.__setstate__(self.__getstate__())  # type: ignore[no-untyped-call]  # makes a reducer
        elif any(now and not before for now, before in zip(trainable, self._trainable, strict=True)):
            raise RuntimeError(
                f"parameters of a prepared {type(self.module).__name__} were unfrozen between a forward and its "
                "backward(), so their gradients would not be averaged over the ranks; unfreeze them before that forward"
            )

    def _after_backward(self) -> None:
        self._watched = self._waits = False
        if self._syncs and self._compared < COMPARED_BACKWARDS:
            self._compared += 1
            self._compare_weights()
        if self._buffers_due and self.modules_buffers:
            self._buffers_due = False
            # A graph that was retained may hold them; before torch 2.11, DDP itself does not see to that.
            with torch.autograd._unsafe_preserve_version_counter(tuple(self.modules_buffers)):
                self._sync_buffers()  # type: ignore[no-untyped-call]

    def _compare_weights(self) -> None:
        """Raise RuntimeError on all ranks if the weights differ: averaged gradients keep their difference as it is."""
        named = [
            (name, it.detach())
            for name, it in self.module.named_parameters()
            if it.requires_grad and name not in self.parameters_to_ignore
        ]
        values = [torch.view_as_real(it) if it.is_complex() else it for _, it in named]
        sums = [it.sum(dtype=torch.float64) for it in values]
        sizes = [torch.linalg.vector_norm(it, 1, dtype=torch.float64) for it in values]
        highest = torch.stack([it.to(values[0].device) for it in (*sums, *(-it for it in sums), *sizes)]).reshape(3, -1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, self.process_group)
        differ = (highest[0] + highest[1] > ROUNDING * highest[2]).tolist()  # False for NaN
        if any(differ):
            found = [name for (name, _), different in zip(named, differ, strict=True) if different]
            raise RuntimeError(
                f"all ranks must have the same weights, got different ones of {', '.join(found[:3])}"
                f"{', ...' * (len(found) > 3)} of {type(self.module).__name__} after prepare(); load weights and "
                "optimizer states on all ranks, and seed what is random"
            )

    def _weigh_gradients(self) -> None:
        """Hook the trainable parameters; a parameter keeps its hook while it is frozen."""
        for parameter in self._known:
            if parameter.requires_grad and id(parameter) not in self._weighed:
                parameter.register_hook(self._weigh)
                parameter.register_post_accumulate_grad_hook(self._check_once)  # which autograd.grad() does not call
                self._weighed.add(id(parameter))

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self._called and self.require_backward_grad_sync:
            raise RuntimeError(
                f"backward() must follow a call of the prepared model, got one of a method of "
                f"{type(self.module).__name__}, whose gradients would not be averaged over the ranks; compute the loss "
                "from model(...)"
            )
        if not self._watched:
            self._watched = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self._weight == 1:
            return None
        return gradient * self._weight if self._weight else torch.zeros_like(gradient)  # 0 * inf is NaN

    def _check_once(self, parameter: torch.Tensor) -> None:
        """Reject a second gradient of a parameter after one forward, because DDP averages only the first."""
        if not self._syncs or self.static_graph:  # with which a parameter may come twice in one backward
            return
        if id(parameter) in self._averaged:
            name = type(self.module).__name__
            raise RuntimeError(
                f"backward() must be called once after one forward of {name}, got a second call, whose gradients would "
                "not be averaged over the ranks; add the losses, or call the model again before backward()"
            )
        self._averaged.add(id(parameter))


_wrappers: WeakSet[DataParallel] = WeakSet()


def wrapper_of(module: nn.Module) -> DataParallel | None:
    """Return the :class:`DataParallel` of this process that wraps a module already, if there is one."""
    return next((wrapper for wrapper in _wrappers if wrapper.module is module), None)


def not_averaged(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the parameters that belong to no :class:`DataParallel` of this process.

    Example:
        >>> len(not_averaged(nn.Linear(2, 1).parameters()))
        2
    """
    known = {id(parameter) for wrapper in _wrappers for parameter in wrapper._known}
    return [parameter for parameter in parameters if id(parameter) not in known]


def wrappers_of(parameters: Iterable[torch.Tensor]) -> list[DataParallel]:
    """Return the :class:`DataParallel` objects of this process that have some of the parameters."""
    wanted = {id(parameter) for parameter in parameters}
    return [wrapper for wrapper in _wrappers if any(id(parameter) in wanted for parameter in wrapper._known)]


def _explain(error: Exception) -> None:
    """Add a note about what works on one rank only: a share too small for batch normalization, or an unused part."""
    share = latest.share
    if "Expected to have finished reduction" in str(error):
        error.add_note("If a step does not use all of a model, use prepare(..., find_unused_parameters=True).")
    if "more than 1 value per channel" in str(error) and share.total > 1:
        error.add_note(
            f"This rank's share of a batch of {share.total} over {share.ranks} ranks is one sample. Use drop_last=True "
            "to leave out a small last batch, larger batches, or, on GPUs, "
            "nn.SyncBatchNorm.convert_sync_batchnorm(model) before prepare()."
        )
