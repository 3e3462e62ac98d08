"""DistributedDataParallel behind the plain module's attributes."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from maggy_like.distributed.loader import latest


class DataParallel(DistributedDataParallel):
    """:class:`~torch.nn.parallel.DistributedDataParallel` that hides itself and weighs shares of uneven size.

    Parameters, buffers and states have the names of the plain module, and what the wrapper has not got is the module's,
    to be read and to be set: ``model.fc``, ``model.temperature = 2``. A state saved with n ranks loads with any number,
    and what is pickled is the plain module. (The functions of ``torch.distributed.checkpoint.state_dict`` know DDP by
    its prefix; give them ``model.module``.)

    Training code takes the mean of the loss over the batch it is given. Each backward multiplies its gradients, before
    they are added to ``.grad``, by ``samples of this rank * ranks / samples of the global batch``; DDP's mean over
    ranks is then the gradient of the mean over the global batch. What counts is the batch whose tensors the last
    forward under grad was given, as a prepared loader yielded them; where it was given others, the batch that such a
    loader yielded last, of those whose loops go on then. So evaluation in between changes nothing, in a loop within the
    loop neither, and batches may be kept or drawn ahead. Without a prepared loader, all ranks weigh the same.

    Gradient accumulation is exact too, with ``no_sync()`` or without, as every backward weighs its own gradients. Only
    where all shares are of one size are these exact: one backward over the losses of several batches, and batches
    of several loaders at once. A loss that is a sum over samples becomes the sum over the global batch divided by the
    ranks. Batch normalisation sees this rank's share (``nn.SyncBatchNorm`` sees all), and dropout draws from the rank's
    stream.

    Parameters may be frozen and unfrozen between steps, on all ranks alike; DDP's reducer is then made anew in the next
    forward under grad, without the hook of ``register_comm_hook``.

    Buffers are made rank 0's at the end of each backward in training mode, not before the next forward as DDP does. So
    all ranks evaluate with the buffers that rank 0 saves, and a forward in evaluation communicates with no rank: one
    rank may evaluate alone.

    Args:
        module: The module, on this rank's device.
        **options: Those of ``DistributedDataParallel``, such as ``find_unused_parameters=True``.

    Raises:
        RuntimeError: In the first backward, if the model itself was never called, but a method of the module: its
            gradients would not be averaged, and the ranks would drift apart. Also when a part of the module is
            replaced, of which DDP would not know, when parameters are unfrozen between a forward and its backward, and
            in a second backward after one forward, which DDP would not average.

    Example:
        >>> model = DataParallel(nn.Linear(2, 1), find_unused_parameters=True)  # doctest: +SKIP
    """

    _built = False
    """Whether attributes that are set may be the module's; DDP's own are all there by then."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        self._weight = 1.0
        self._called = False
        self._waits = False  # a forward in training for its backward
        self._watched = False  # whether the backward that goes on now has been noticed
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
            if self.training and any(parameter.requires_grad for parameter in self._known):
                self._waits = True
                self._buffers_due = self._syncs_buffers and self.require_backward_grad_sync
        try:
            return super().forward(*args, **kwargs)  # type: ignore[no-untyped-call]
        except (RuntimeError, ValueError) as error:
            _explain(error)
            raise

    def check_finished(self) -> None:
        """See that the last backward reached all that is trained.

        Raises:
            RuntimeError: It did not: DDP has averaged nothing of it.
        """
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
                f"{name} of a prepared {type(self.module).__name__} cannot be replaced, as the gradients of the new "
                "one would not be averaged over the ranks; change the model before prepare()"
            )
        setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            super().__delattr__(name)
        else:
            delattr(self.module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataParallel:
        """A copy that is data-parallel too; one rank may make it alone."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = {**self.__getstate__(), "_built": False}  # type: ignore[no-untyped-call]
        twin.__setstate__(copy.deepcopy(state, memo))  # type: ignore[no-untyped-call]
        twin._begin()
        return twin

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle the plain module, which is read where there are no ranks, nor this package."""
        return operator.getitem, ((self.module,), 0)

    def _begin(self) -> None:
        """Take note of the parameters; the last step of making a wrapper or a copy."""
        self._known = list(self.module.parameters())
        self._trainable = [parameter.requires_grad for parameter in self._known]
        self._weighed: set[int] = set()
        self._averaged = set()
        self._weigh_gradients()
        _wrappers.add(self)
        self._built = True

    def _follow_frozen(self) -> None:
        """Have DDP average just the gradients of what is trainable now: it looks at that when its reducer is made.

        Where nothing is (a discriminator in the step of its generator), no gradient comes, and the reducer is kept. So
        it is while an earlier forward waits for its backward, which the reducer has yet to serve.

        Raises:
            RuntimeError: The reducer is to be kept, and does not know what is trainable now.
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
        if self._buffers_due and self.modules_buffers:
            self._buffers_due = False
            # A graph that was retained may hold them; before torch 2.11, DDP itself does not see to that.
            with torch.autograd._unsafe_preserve_version_counter(tuple(self.modules_buffers)):
                self._sync_buffers()  # type: ignore[no-untyped-call]

    def _weigh_gradients(self) -> None:
        """Hook what is trainable; a parameter keeps its hook while it is frozen."""
        for parameter in self._known:
            if parameter.requires_grad and id(parameter) not in self._weighed:
                parameter.register_hook(self._weigh)
                parameter.register_post_accumulate_grad_hook(self._check_once)  # which autograd.grad() does not call
                self._weighed.add(id(parameter))

    def _weigh(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self._called and self.require_backward_grad_sync:
            raise RuntimeError(
                f"backward() through a method of {type(self.module).__name__}, while the prepared model itself was not "
                "called: the gradients would not be averaged over the ranks; compute the loss from model(...)"
            )
        if not self._watched:
            self._watched = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self._weight == 1:
            return None
        return gradient * self._weight if self._weight else torch.zeros_like(gradient)  # 0 * inf is NaN

    def _check_once(self, parameter: torch.Tensor) -> None:
        """Refuse a second gradient of a parameter after one forward: DDP averages the first alone."""
        if not self._syncs or self.static_graph:  # with which a parameter may come twice in one backward
            return
        if id(parameter) in self._averaged:
            name = type(self.module).__name__
            raise RuntimeError(
                f"a second backward() after one forward of {name}: its gradients would not be averaged over the "
                "ranks; add the losses and call backward() once, or call the model and backward() in turn"
            )
        self._averaged.add(id(parameter))


_wrappers: WeakSet[DataParallel] = WeakSet()


def wrapper_of(module: nn.Module) -> DataParallel | None:
    """The :class:`DataParallel` of this process that has wrapped a module already, if there is one."""
    return next((wrapper for wrapper in _wrappers if wrapper.module is module), None)


def not_averaged(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters that no :class:`DataParallel` of this process knows.

    Example:
        >>> len(not_averaged(nn.Linear(2, 1).parameters()))
        2
    """
    known = {id(parameter) for wrapper in _wrappers for parameter in wrapper._known}
    return [parameter for parameter in parameters if id(parameter) not in known]


def wrappers_of(parameters: Iterable[torch.Tensor]) -> list[DataParallel]:
    """The :class:`DataParallel` of this process that have some of the parameters."""
    wanted = {id(parameter) for parameter in parameters}
    return [wrapper for wrapper in _wrappers if any(id(parameter) in wanted for parameter in wrapper._known)]


def _explain(error: Exception) -> None:
    """Tell what works on one rank and not on several: a share too small for batch normalisation, an unused part."""
    share = latest.share
    if "Expected to have finished reduction" in str(error):
        error.add_note(
            "A step that does not use all of a model: give prepare() a model that is wrapped for that, "
            "maggy_like.distributed.ddp.DataParallel(model, find_unused_parameters=True)."
        )
    if "more than 1 value per channel" in str(error) and share.total > 1:
        error.add_note(
            f"This rank's part of a batch of {share.total} over {share.ranks} ranks is one sample: leave a small last "
            "batch out with drop_last=True, take larger batches, or (on GPUs) call "
            "nn.SyncBatchNorm.convert_sync_batchnorm(model) before prepare()."
        )
