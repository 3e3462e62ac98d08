"""The network that is trained: from an object or a function, and as two files."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from maggy_like.errors import ConfigError, PlatformError
from maggy_like.processes.pickles import Pickler


def is_lightning(model: Any) -> bool:
    """Whether the network brings its own loss and optimizer, as Lightning's modules do."""
    return callable(getattr(model, "training_step", None)) and callable(getattr(model, "configure_optimizers", None))


def build_network(model: Any, arguments: Mapping[str, Any], seed: int) -> nn.Module:
    """The network: a copy of the module, or what the function makes of the arguments.

    Raises:
        ConfigError: The function takes other arguments, or makes no module.
    """
    if isinstance(model, nn.Module):
        if arguments:
            raise ConfigError(
                f"model is a {type(model).__name__} that was made already, and cannot take {', '.join(arguments)}; "
                "pass the class, or a function that makes it"
            )
        try:
            return copy.deepcopy(model)
        except Exception as error:
            raise ConfigError(
                f"model is a {type(model).__name__} that cannot be copied ({first_line(error)}); pass the function or "
                "class that makes it"
            ) from error
    if not callable(model):
        raise ConfigError(f"model must be a torch module, or a function that makes one, got {model!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inspect.signature(model).bind(**arguments)
        except TypeError as error:
            raise ConfigError(
                f"model takes other arguments than {dict(arguments)!r}: {error}; see modelParams"
            ) from None
        network = model(**arguments)
    if not isinstance(network, nn.Module):
        raise ConfigError(f"model made {network!r}, which is no torch module")
    return network


def first_line(error: Exception) -> str:
    """The first line of an exception's message; torch's have several."""
    return str(error).partition("\n")[0]


def freeze(network: nn.Module, globs: Sequence[str]) -> list[nn.Module]:
    """Keep modules as they are: their parameters are not trained.

    Args:
        globs: Patterns for names as ``network.named_modules()`` gives them, such as ``"encoder*"``.

    Returns:
        The frozen modules; in training they are to be in evaluation mode, so that batch normalisation stays too.

    Raises:
        ConfigError: A pattern fits no module.
    """
    modules = {name: module for name, module in network.named_modules() if name}
    frozen: list[nn.Module] = []
    for glob in globs:
        found = [module for name, module in modules.items() if fnmatchcase(name, glob)]
        if not found:
            raise ConfigError(f"freeze: no module has a name like {glob!r}; there are {', '.join(modules) or 'none'}")
        frozen += found
    for module in frozen:
        module.requires_grad_(False)
    return frozen


def normalises_batches(network: nn.Module, frozen: Sequence[nn.Module]) -> bool:
    """Whether a part of the network that is trained normalises over a batch, and so may need more than one row."""
    still = {id(part) for module in frozen for part in module.modules()}
    return any(isinstance(part, _BatchNorm) and id(part) not in still for part in network.modules())


def to_cpu(value: Any) -> Any:
    """A state with all its tensors on the CPU, in memory of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: to_cpu(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(inner) for inner in value)
    return value


def make_portable(network: nn.Module, make: Any, arguments: Mapping[str, Any], seed: int) -> None:
    """Have a network that does not pickle, such as one with parametrizations, travel as its function and its state.

    Args:
        make: What the network was made by, or the module itself that was given.
        arguments: Arguments of that function.
        seed: Of what it draws.

    Raises:
        ConfigError: That does not pickle either, or the network was given as a module.
    """
    try:
        _structure(network)
    except Exception as error:
        if isinstance(make, nn.Module):
            raise ConfigError(
                f"model is a {type(network).__name__} that cannot be pickled ({first_line(error)}), so a trained one "
                "could not be used; pass the function or class that makes it"
            ) from error
        # Pickle asks the object for it before its class.
        network.__dict__["__reduce_ex__"] = _Remaking(network, make, arguments, seed)
        try:
            _structure(network)
        except Exception as other:
            raise ConfigError(
                f"the network of type {type(network).__name__} cannot be pickled ({first_line(error)}), nor can the "
                f"function that makes it ({first_line(other)}), so a trained one could not be used"
            ) from other


class _Remaking:
    """How a network is pickled: as what makes it, and its state."""

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
    """The network as a pickle that refers to its weights."""
    state = network.state_dict(keep_vars=True)
    structure = io.BytesIO()
    _Pickler(structure, {name: it for name, it in state.items() if isinstance(it, torch.Tensor)}).dump(network)
    return structure.getvalue()


def network_to_bytes(network: nn.Module) -> dict[str, bytes]:
    """The two files by name, ``weights`` and ``structure``.

    Raises:
        ConfigError: The network holds something that cannot be pickled.
    """
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
    """The network of the two files, in evaluation mode on the CPU.

    Raises:
        PlatformError: The code of the network's modules is not there, or has changed.
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
        """Name of a tensor that lies in the weights, whether it is a parameter, and whether it is trained."""
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
