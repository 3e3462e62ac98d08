"""States with tensors that are sharded over the ranks, saved by all of them together and loaded by any number.

They use torch's distributed checkpoints: each rank writes its shards into one directory. The directory's metadata is
written last, so it marks the state as complete.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from maggy_like.processes import pickles
from maggy_like.storage.checkpoints import StateLostError, naming
from maggy_like.storage.file_systems import StoreFault, is_local, is_store_fault, open_url

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlanner
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

# torch.distributed.checkpoint takes about half a second to import, so only saving a sharded state imports it.


class ShardedStateError(RuntimeError):
    """A sharded state could not be saved or loaded."""


class ShardedStoreError(ShardedStateError, StoreFault):
    """A sharded state could not be saved or loaded because the store refused it; every rank raises this."""


class IncompleteStateError(ShardedStateError, StateLostError):
    """A directory has no complete state: nothing was saved there, or the ranks were interrupted."""


def is_sharded(state: Any) -> bool:
    """Whether a tensor in nested dicts, lists and tuples is sharded over ranks (a DTensor, or a ShardedTensor)."""
    # What was never imported has no instances.
    modules = (
        (sys.modules.get("torch.distributed.tensor"), "DTensor"),
        (sys.modules.get("torch.distributed._shard.sharded_tensor"), "ShardedTensor"),
    )
    kinds = tuple(getattr(module, name) for module, name in modules if hasattr(module, name))
    return bool(kinds) and any(isinstance(leaf, kinds) for leaf in _leaves(state))


class ShardedSave:
    """A save that may still be in progress. Created by :func:`save`."""

    def __init__(self, url: str, future: concurrent.futures.Future[Any]) -> None:
        self._url = url
        self._future = future

    def is_written(self) -> bool:
        """Whether it has succeeded on this rank; the directory is complete once it has on rank 0."""
        return self._future.done() and self._future.exception() is None

    def wait(self) -> None:
        """Wait for its end.

        If the store refused it on some rank, raise ShardedStoreError, and ShardedStateError if it failed for another
        reason.
        """
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            self._future.result()
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            raise _failure(error)(f"the state could not be saved to {self._url}: {_reason(error)}") from error


class _Pending:
    """The newest save of this process, and the process group for saves.

    Saves communicate in their own thread, in parallel with the training. On the same group, their messages would be
    mixed.
    """

    saving: concurrent.futures.Future[Any] | None = None
    group: dist.ProcessGroup | None = None
    default: dist.ProcessGroup | None = None


def save(url: str, state: dict[str, Any]) -> ShardedSave:
    """Begin to save a state: nested dicts, lists and tuples of tensors and of picklable objects.

    Every rank calls it with its shards, and may continue to train when it returns. The directory, which is only for
    this state, may be on any fsspec file system. It is complete only when the returned save has ended.

    Tensors are copied to the CPU and the rest is pickled first; then a thread writes them. It first waits for an
    earlier save. Parts that all ranks have (plain tensors, step numbers) are written once, by one of them.

    FileExistsError is raised if the directory has a complete state already, ReportError if a part without tensors
    cannot be pickled, and ValueError if two parts have one name, as in ``{"a": {"b": x}, "a.b": y}``.
    """
    from torch.distributed.checkpoint.state_dict_saver import async_save

    parts = {
        name: part if isinstance(part, torch.Tensor) else _pickle(name, part) for name, part in _flatten(state).items()
    }
    _finish_pending()
    fs, path = open_url(url)
    try:
        is_whole = fs.exists(_metadata(path))
        if is_local(fs):
            os.makedirs(path, 0o700, exist_ok=True)  # on this machine's disks, only for the user
    except Exception as error:
        raise _failure(error)(f"the state could not be saved to {url}: {_reason(error)}") from error
    if is_whole:
        raise FileExistsError(f"{url} has a complete state already; save each state to its own directory")
    future = async_save(
        parts,
        storage_writer=_writer(url),
        planner=_save_planner(),
        process_group=_group(),
    )
    _Pending.saving = cast("concurrent.futures.Future[Any]", future)
    return ShardedSave(url, _Pending.saving)


def load(url: str, into: dict[str, Any]) -> dict[str, Any]:
    """Load a state that any number of ranks saved into a state of the present sharding, and return that.

    Every rank calls it. Without a process group, one process loads it into plain tensors. ``into`` has the structure of
    the checkpoint. Its tensors are overwritten, and so are the other values in its dicts and lists. The state of an
    optimizer exists only after a step; ``get_state_dict`` of ``torch.distributed.checkpoint.state_dict`` returns a
    state that has it, for :func:`save` and :func:`load`.

    IncompleteStateError is raised if the directory has no complete state, and another ShardedStateError if ``into`` has
    another structure or the state could not be read.
    """
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    _finish_pending()
    reader = _reader(url)
    try:
        metadata = reader.read_metadata()
    except FileNotFoundError:
        raise IncompleteStateError(
            f"{url} has no complete state: {_metadata('')[1:]}, which is written last, is missing"
        ) from None
    except (EOFError, pickle.UnpicklingError) as error:
        raise IncompleteStateError(f"{url} has no complete state: {_metadata('')[1:]} is damaged ({error})") from error
    except Exception as error:
        raise _failure(error)(f"the state of {url} could not be loaded: {_reason(error)}") from error
    flat = _flatten(into)
    _compare(url, set(metadata.state_dict_metadata), set(flat))
    is_single = not dist.is_initialized()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
            state_dict_loader.load(
                flat,
                storage_reader=reader,
                planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
                process_group=None if is_single else _group(),
                no_dist=is_single,
            )
    except (Exception, CheckpointException) as error:  # the latter is no Exception
        raise _failure(error)(f"the state of {url} could not be loaded: {_reason(error)}") from error
    _put_back(into, flat, "")
    return into


def _compare(url: str, saved: set[str], wanted: set[str]) -> None:
    """Reject a partial load, by which for example momenta would be lost without notice."""
    if saved != wanted:
        lacks = ", ".join(sorted(saved - wanted)[:5]) or "nothing"
        extra = ", ".join(sorted(wanted - saved)[:5]) or "nothing"
        raise ShardedStateError(
            f"into must have the structure of {url}; it lacks {lacks}, and has in addition {extra} (at most five are "
            "listed); create it as for saving, and use get_state_dict() of torch.distributed.checkpoint.state_dict for "
            "the state of an optimizer"
        )


def _failure(error: BaseException) -> type[ShardedStateError]:
    """Return the class to raise: all ranks know all failures, and so raise the same."""
    causes = [failure[0] for failure in getattr(error, "failures", {None: (error,)}).values()]
    return ShardedStoreError if all(map(is_store_fault, causes)) else ShardedStateError


def _reason(error: BaseException) -> str:
    """Return what failed on which rank, without the tracebacks that torch puts into its message."""
    failures = getattr(error, "failures", {None: (error,)})
    return "; ".join(
        f"{'' if rank is None else f'on rank {rank}, '}{type(failure[0]).__name__}: {failure[0]}"
        for rank, failure in failures.items()
    )


def _finish_pending() -> None:
    """Wait for the newest save; its own :class:`ShardedSave` has the result."""
    if _Pending.saving is not None:
        concurrent.futures.wait([_Pending.saving])
        _Pending.saving = None


def _group() -> dist.ProcessGroup:
    """Return a gloo group only for saves, created at the first one."""
    if _Pending.group is None or _Pending.default is not dist.group.WORLD:
        _Pending.default = dist.group.WORLD
        _Pending.group = dist.new_group(backend="gloo")
    return cast("dist.ProcessGroup", _Pending.group)


def _pickle(name: str, part: Any) -> io.BytesIO:
    """Pickle a part without tensors as torch does, but with the classes of a script or notebook."""
    file = io.BytesIO()
    with naming(f"{name!r} of the state given to checkpoint()"):
        torch.save(part, file, pickle_module=pickles, pickle_protocol=5)
    return file


def _save_planner() -> SavePlanner:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Planner(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            return object  # it is pickled already

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)


def _writer(url: str) -> StorageWriter:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    fs, path = open_url(url)
    if is_local(fs):
        return FileSystemWriter(path)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    return FsspecWriter(url.rstrip("/"))


def _reader(url: str) -> StorageReader:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    fs, path = open_url(url)
    if is_local(fs):
        return FileSystemReader(path)
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    return FsspecReader(url.rstrip("/"))


def _metadata(path: str) -> str:
    return f"{path.rstrip('/')}/.metadata"


def _children(node: Any) -> Iterator[tuple[Any, Any]] | None:
    """Return what a container has by key or index; None if it is not a container."""
    if isinstance(node, dict):
        return iter(node.items())
    return enumerate(node) if isinstance(node, list) or type(node) is tuple else None


def _leaves(node: Any) -> Iterator[Any]:
    children = _children(node)
    if children is None:
        yield node
    else:
        for _, child in children:
            yield from _leaves(child)


def _flatten(state: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors of a state by name (``model.fc.weight``), and the parts without tensors, each as one.

    torch's own flattening turns the integer keys of optimizer states into strings and pickles tuples of tensors. A name
    that occurs twice is rejected.
    """
    flat: dict[str, Any] = {}
    for name, part in _parts(state):
        if name in flat:
            raise ValueError(
                f"the parts of the state must have different names, got {name!r} twice when joined by dots; rename one"
            )
        flat[name] = part
    return flat


def _parts(node: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    children = _children(node)
    if children is None or (name and not any(isinstance(leaf, torch.Tensor) for leaf in _leaves(node))):
        yield name, node
    else:
        for key, child in children:
            yield from _parts(child, f"{name}.{key}" if name else str(key))


def _put_back(node: Any, flat: dict[str, Any], name: str) -> Any:
    """Put loaded parts back where :func:`_flatten` found them."""
    if name in flat:
        return flat[name]
    children = [
        (key, _put_back(child, flat, f"{name}.{key}" if name else str(key))) for key, child in _children(node) or ()
    ]
    if isinstance(node, tuple):
        return tuple(child for _, child in children)
    for key, child in children:
        node[key] = child
    return node
