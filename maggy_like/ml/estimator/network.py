"""The network that is trained: made from an object or a function, and stored as two files."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from maggy_like.errors import ConfigError, PlatformError
from maggy_like.processes.pickles import Pickler


def lightning_of(model: Any) -> str | None:
    """Return the package of Lightning that a LightningModule, or a class of one, comes from; None for other models."""
    kind = model if isinstance(model, type) else type(getattr(model, "_orig_mod", model))
    homes = [base.__module__ for base in kind.__mro__ if base.__name__ == "LightningModule"]
    return next((it for it in ("lightning.pytorch", "pytorch_lightning") if f"{it}.core.module" in homes), None)


def is_lightning(model: Any) -> bool:
    """Whether the network brings its own loss and optimizer, as LightningModules do."""
    return lightning_of(model) is not None


def build_network(model: Any, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Make the network as :func:`make_network` does, and return the plain one.

    The calls of one that ``torch.compile`` has made are compiled as before.
    """
    return uncompiled(make_network(model, arguments, seed))


def make_network(model: Any, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """Make the network: a copy of the module, or the result of the function."""
    if isinstance(model, nn.Module):
        if arguments:
            raise ConfigError(
                f"model must be a class or a function to take {', '.join(arguments)}, got an object of type "
                f"{type(model).__name__}; pass its class, or a function that returns it"
            )
        try:
            return copy.deepcopy(model)
        except Exception as error:
            raise ConfigError(
                f"model must be a module that can be copied, got a {type(model).__name__} ({first_line(error)}); pass "
                "its class, or a function that returns it"
            ) from error
    if not callable(model):
        raise ConfigError(f"model must be a torch module or a function that returns one, got {model!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inspect.signature(model).bind(**arguments)
        except TypeError as error:
            raise ConfigError(f"model must take the arguments {dict(arguments)!r}: {error}; use modelParams") from None
        network = model(**arguments)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model must return a torch module, got {network!r}")
    return network


def uncompiled(network: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wraps, with compiled calls, as ``nn.Module.compile`` would leave it."""
    plain: Any = getattr(network, "_orig_mod", None)
    if plain is None:
        return network

    def call(*args: Any, **kwargs: Any) -> Any:  # a frame of its own, since those of torch's modules are not compiled
        return plain._call_impl(*args, **kwargs)

    plain._compiled_call_impl = cast(Any, network).dynamo_ctx(call)
    return plain  # type: ignore[no-any-return]


def first_line(error: Exception) -> str:
    """Return the first line of an exception's message, because those of torch have several."""
    return str(error).partition("\n")[0]


def freeze(network: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Exclude modules from training, and return them.

    ``globs`` are patterns of names in ``network.named_modules()``, such as ``"encoder*"``, each of which must match.
    Keep the returned modules in evaluation mode during training, so that batch normalization does not change.
    """
    modules = {name: module for name, module in network.named_modules() if name}
    frozen: list[nn.Module] = []
    for glob in globs:
        found = [module for name, module in modules.items() if fnmatchcase(name, glob)]
        if not found:
            raise ConfigError(
                f"freeze must have patterns of modules, got {glob!r}, which matches none of "
                f"{', '.join(modules) or 'none'}"
            )
        frozen += found
    for module in frozen:
        module.requires_grad_(False)
    return frozen


def normalizes_batches(network: nn.Module, frozen: Sequence[nn.Module]) -> bool:
    """Whether a trained part of the network normalizes over a batch, and so may need more than one row."""
    still = {id(part) for module in frozen for part in module.modules()}
    return any(isinstance(part, _BatchNorm) and id(part) not in still for part in network.modules())


def to_cpu(value: Any) -> Any:
    """Copy a state with all its tensors to the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(inner) for inner in value)
    return value


def make_portable(network: nn.Module, make: Any, arguments: Mapping[str, Any], seed: int) -> None:
    """Let a network that cannot be pickled, such as one with parametrizations, be pickled by its function and state.

    ``make`` is the function that made the network from ``arguments`` and, for its random numbers, ``seed``. It may be
    the given module itself, which raises ConfigError if it cannot be pickled.
    """
    try:
        _structure(network)
    except Exception as error:
        if isinstance(make, nn.Module):
            raise ConfigError(
                f"model must be a module that can be pickled, got a {type(network).__name__} ({first_line(error)}); "
                "pass its class, or a function that returns it"
            ) from error
        # Pickle asks the object for it before its class.
        network.__dict__["__reduce_ex__"] = _Remaking(network, make, arguments, seed)
        try:
            _structure(network)
        except Exception as other:
            raise ConfigError(
                f"model must make a network that can be pickled, or be picklable itself; the network is a "
                f"{type(network).__name__} ({first_line(error)}), and the function failed ({first_line(other)})"
            ) from other


class _Remaking:
    """Pickles a network as the function that makes it, and its state."""

    def __init__(self, network: nn.Module, make: Any, arguments: Mapping[str, Any], seed: int) -> None:
        self._network = network
        self._made_by = make, dict(arguments), seed

    def __call__(self, protocol: Any) -> tuple[Any, ...]:
        return _remake, (*self._made_by, dict(self._network.state_dict(keep_vars=True)))


def _remake(make: Any, arguments: dict[str, Any], seed: int, state: dict[str, Any]) -> nn.Module:
    network = build_network(make, arguments, seed)
    network.load_state_dict(state)
    network.__dict__["__reduce_ex__"] = _Remaking(network, make, arguments, seed)
    return network.eval()


def _structure(network: nn.Module) -> bytes:
    """Pickle a network with references to its weights."""
    state = network.state_dict(keep_vars=True)
    structure = io.BytesIO()
    _Pickler(structure, {name: it for name, it in state.items() if isinstance(it, torch.Tensor)}).dump(network)
    return structure.getvalue()


def network_to_bytes(network: nn.Module) -> dict[str, bytes]:
    """Return the two files by name, ``weights`` and ``structure``."""
    state = network.state_dict(keep_vars=True)
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    weights = io.BytesIO()
    try:
        structure = _structure(network)
    except Exception as error:
        raise ConfigError(f"the network of type {type(network).__name__} cannot be pickled: {error}") from error
    torch.save({name: value.detach().cpu() for name, value in tensors.items()}, weights)
    return {"structure": structure, "weights": weights.getvalue()}


def network_of_bytes(parts: dict[str, bytes]) -> nn.Module:
    """Load the network from the two files, in evaluation mode on the CPU.

    If the code of its modules is missing or has changed, raise PlatformError.
    """
    weights = torch.load(io.BytesIO(parts["weights"]), map_location="cpu", weights_only=True)
    try:
        network = _Unpickler(io.BytesIO(parts["structure"]), weights).load()
    except (ImportError, AttributeError) as error:
        raise PlatformError(
            f"the network cannot be read: {error}; install the package that defines its modules"
        ) from error
    assert isinstance(network, nn.Module)
    return network.eval()


class _Pickler(Pickler):
    """Writes names in place of a network's parameters and buffers."""

    def __init__(self, file: io.BytesIO, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(file)
        self._names = {id(value): name for name, value in tensors.items()}

    def persistent_id(self, value: Any) -> tuple[str, bool, bool] | None:
        """Return the name of a tensor of the weights, whether it is a parameter, and whether it is trained."""
        if isinstance(value, torch.Tensor) and id(value) in self._names:
            return self._names[id(value)], isinstance(value, nn.Parameter), value.requires_grad
        return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, weights: dict[str, torch.Tensor]) -> None:
        super().__init__(file)
        self._weights = weights
        self._made: dict[str, torch.Tensor] = {}  # one that is used twice is one again

    def persistent_load(self, pid: tuple[str, bool, bool]) -> torch.Tensor:
        name, is_parameter, is_trained = pid
        if name not in self._made:
            value = self._weights[name]
            self._made[name] = nn.Parameter(value, requires_grad=is_trained) if is_parameter else value
        return self._made[name]
