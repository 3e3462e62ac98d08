"""Modules of torch models: replaced, counted, and run on a sample. Only this file of the package imports torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from maggy_like.errors import ConfigError

if TYPE_CHECKING:
    from maggy_like.ablation.components import Modules


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to all values in tuples, lists and dicts, and keep their structure."""
    if isinstance(value, dict):
        made = copy.copy(value)
        for key, part in value.items():
            made[key] = mapped(function, part)
        return made
    if isinstance(value, tuple | list):
        each = [mapped(function, part) for part in value]
        return type(value)(*each) if hasattr(value, "_fields") else type(value)(each)
    return function(value)


def parts(value: Any) -> list[Any]:
    """Return all values in tuples, lists and dicts."""
    if isinstance(value, dict):
        return parts(tuple(value.values()))
    return [one for part in value for one in parts(part)] if isinstance(value, tuple | list) else [value]


def first_name(module: nn.Module) -> str:
    """The name of a module's first parameter."""
    return next(iter(inspect.signature(module.forward).parameters), "")


def first_input(name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the first input: the first positional one, or that of the module's first parameter."""
    return inputs[0] if inputs else named.get(name, next(iter(named.values()), None))


_KNOWN_AT_MOST = 128
"""Number of calls whose outputs a replacement caches."""

_CONSTANT = bool | int | float | str | None | torch.dtype | torch.device


class _Outputs:
    """The outputs that a module would return: structure, shapes and dtypes.

    They come from a copy of it on torch's ``meta`` device, which computes nothing and takes no memory, and whose
    parameters do not belong to the model.
    """

    def __init__(self, replaced: nn.Module) -> None:
        self._copy = _on_meta(replaced)
        self._kind = type(replaced).__name__
        self._known: dict[Any, Any] = {}
        self._device = next((held.device for held in (*replaced.parameters(), *replaced.buffers())), None)

    def of(self, inputs: tuple[Any, ...], named: dict[str, Any], training: bool) -> Any:
        """Return the output for these inputs, with tensors on ``meta``.

        It must have only tensors and constants, and must not depend on the values of tensors.
        """
        key = (training, _key((inputs, named)))
        if key not in self._known:
            if len(self._known) >= _KNOWN_AT_MOST:
                self._known.clear()
            self._known[key] = self._run(inputs, named, training)
        return self._known[key]

    def device(self, given: Any) -> torch.device | None:
        """Return the device of the first input tensor, or else of the module's parameters."""
        return next((tensor.device for tensor in tensors(given)), self._device)

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Follow ``model.to(...)``, ``.half()`` and similar calls, which call this for every module."""

        def cast(held: torch.Tensor) -> torch.Tensor:
            return held.to(function(torch.empty(0, dtype=held.dtype)).dtype)

        self._copy._apply(cast)  # type: ignore[no-untyped-call]
        self._device = function(torch.empty(0, device=self._device)).device
        self._known.clear()

    def _run(self, inputs: tuple[Any, ...], named: dict[str, Any], training: bool) -> Any:
        dtype = next((held.dtype for held in self._copy.parameters() if held.is_floating_point()), None)
        is_cast = _in_autocast(self.device((inputs, named)))

        def move(given: Any) -> Any:
            if not isinstance(given, torch.Tensor):
                return given
            # Autocast brings inputs and parameters to one dtype, but not on the meta device.
            return given.to("meta", dtype if is_cast and given.is_floating_point() else None)

        _set_mode(self._copy, training)
        try:
            with torch.no_grad():
                made = self._copy(*mapped(move, inputs), **mapped(move, named))
        except Exception as error:
            raise ConfigError(
                f"the output of {self._kind} cannot be determined without computing it ({first_line(error)}); use a "
                "custom module to replace it, such as replace=nn.Identity()"
            ) from error
        if odd := _odd_part(made):
            raise ConfigError(
                f"the output of {self._kind} must have only tensors, got {odd}; use a custom module to replace it"
            )
        return made


class _StandIn(nn.Module):
    """A replacement of a module. It takes any arguments of that module, and follows the model's dtype."""

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self._outputs = _Outputs(replaced)
        self._first = first_name(replaced)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        self._outputs.apply(fn)
        applied: nn.Module = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return applied

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, which the model reads from the replaced module; use "
                "a custom module that has it"
            ) from None


class Zero(_StandIn):
    """Zeros with the structure, shapes and dtypes of a module's output."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return zeros on the device of the first input."""
        device = self._outputs.device((inputs, named))
        return mapped(lambda made: _zeros(made, device), self._outputs.of(inputs, named, self.training))


class Identity(_StandIn, nn.Identity):
    """The first input; if a module returns more than one tensor, the others are zeros."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the first input in place of the module's first output tensor."""
        made = self._outputs.of(inputs, named, self.training)
        given = first_input(self._first, inputs, named)
        if isinstance(made, torch.Tensor) or shape_of(made) == shape_of(given):
            return given
        device, places = self._outputs.device((inputs, named)), [given]

        def fill(part: Any) -> Any:
            return places.pop() if places and isinstance(part, torch.Tensor) else _zeros(part, device)

        return mapped(fill, made)


def is_module(model: object) -> bool:
    """Whether it is a torch model."""
    return isinstance(model, nn.Module)


def module_places(model: object) -> dict[str, tuple[str, ...]]:
    """Map the name of each module inside a model to all names of that module; a shared one has several.

    A container, such as a ``ModuleList``, has none: it has no forward, so nothing can replace it.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"the model's factory must return a torch model to ablate modules, got a {type(model).__name__}"
        )
    known = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    places: dict[nn.Module, tuple[str, ...]] = {}
    for name, module in known.items():
        is_container = getattr(module.forward, "__func__", None) is nn.Module.forward
        places[module] = () if is_container else (*places.get(module, ()), name)
    return {name: places[module] for name, module in known.items()}


def n_parameters(model: nn.Module) -> int:
    """Return the number of values in a model's parameters. A lazy module must have run before."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(
                f"the parameter {name!r} of a lazy module has no shape until it runs; use AblationStudy(sample=...) to "
                "run it"
            )
    return sum(parameter.numel() for parameter in model.parameters())


def replace_modules(model: nn.Module, components: Iterable[Modules]) -> None:
    """Replace modules in place, with all modules inside them.

    A module with several names is replaced by one module under all of them.
    """
    wanted = {path: component.replace for component in components for path in component.paths}
    places = {path: how for path, how in wanted.items() if not any(path.startswith(f"{outer}.") for outer in wanted)}
    found = {path: _module_at(model, path) for path in sorted(places)}
    made: dict[nn.Module, nn.Module] = {}
    for path, module in found.items():
        if module not in made:
            made[module] = _substitute(module, places[path], path)
    for path, module in found.items():
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, made[module])


def cut(sample: Any, kept: Sequence[int], n_features: int) -> Any:
    """Return a sample with only the features ``kept``, in tensors whose last axis has all features."""

    def narrow(part: Any) -> Any:
        has_all = isinstance(part, torch.Tensor) and part.shape[-1:] == (n_features,)
        return part[..., kept] if has_all and len(kept) < n_features else part

    return mapped(narrow, sample)


def seed_weights(seed: int) -> None:
    """Seed the weights of the next model."""
    torch.manual_seed(seed)


def run(model: nn.Module, sample: Any, training: bool) -> Any:
    """Run forward once without side effects on gradients, batch statistics and random numbers."""
    _set_mode(model, training)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return model(*sample) if isinstance(sample, tuple) else model(sample)


def tensors(value: Any) -> list[torch.Tensor]:
    """Return all tensors in tuples, lists and dicts."""
    return [part for part in parts(value) if isinstance(part, torch.Tensor)]


def shape_of(value: Any) -> Any:
    """Return a tensor's shape, those in a tuple or dict, or the type's name of anything else."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list):
        return tuple(map(shape_of, value))
    return {key: shape_of(part) for key, part in value.items()} if isinstance(value, dict) else type(value).__name__


def first_line(error: Exception) -> str:
    """Return the beginning of an error's message."""
    return str(error).partition("\n")[0] or type(error).__name__


def _module_at(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise ConfigError(
            f"the model of every variant must have the module {path!r} of the base; let the factory use the same names "
            "for all arguments"
        ) from None


def _substitute(module: nn.Module, how: Any, path: str) -> nn.Module:
    if isinstance(how, str):
        try:
            return Identity(module) if how == "identity" else Zero(module)
        except Exception as error:
            raise ConfigError(
                f"module {path!r} must be copyable for {how!r}, got {first_line(error)}; use a custom module to "
                "replace it, such as replace=nn.Identity()"
            ) from error
    made = _reset_copy(how) if isinstance(how, nn.Module) else how(module)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the replacement of module {path!r} must be a module, got {made!r}")
    return made


def _reset_copy(given: nn.Module) -> nn.Module:
    """Return a copy with new weights, drawn with the seed; outer modules override inner ones."""
    made = copy.deepcopy(given)
    for part in reversed(list(made.modules())):
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
    return made


def _on_meta(module: nn.Module) -> nn.Module:
    """Return a copy with tensors on ``meta``, made without copying any of them."""
    hollow: dict[int, Any] = {}
    for part in module.modules():
        held = (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values())
        hollow |= {id(one): _hollow(one) for one in held if isinstance(one, torch.Tensor)}
    return copy.deepcopy(module, hollow)


def _hollow(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        return type(tensor)(requires_grad=False, device="meta", dtype=tensor.dtype)  # type: ignore[call-arg]
    moved = tensor.detach().to("meta")
    return nn.Parameter(moved, requires_grad=False) if isinstance(tensor, nn.Parameter) else moved


def _set_mode(model: nn.Module, training: bool) -> None:
    """Set the mode of all modules except batch norm.

    In training, batch norm rejects a sample of one and changes its statistics.
    """
    model.train(training)
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()


def _in_autocast(device: torch.device | None) -> bool:
    if device is None or not torch.amp.is_autocast_available(device.type):
        return False
    return torch.is_autocast_enabled(device.type)


def _zeros(part: Any, device: torch.device | None) -> Any:
    return torch.zeros(part.shape, dtype=part.dtype, device=device) if isinstance(part, torch.Tensor) else part


def _odd_part(value: Any) -> str | None:
    """Return the type of a value that is neither a tensor nor a constant, if there is one."""
    return next((type(part).__name__ for part in parts(value) if not isinstance(part, torch.Tensor | _CONSTANT)), None)


def _key(value: Any) -> Any:
    """Return a key of what determines shapes and dtypes; mutable objects equal nothing."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, dict):
        return tuple((key, _key(part)) for key, part in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(_key, value))
    return value if isinstance(value, _CONSTANT) else object()


class SampleRun:
    """A run of the base model on the sample, in eval and in train mode. It must succeed in eval mode.

    The sample is a tensor, or a tuple of tensors.
    """

    def __init__(self, model: nn.Module, sample: Any) -> None:
        self._shapes: dict[str, tuple[Any, Any, Any]] = {}  # of the first input, the output and its first tensor
        self._outputs: dict[bool, Any] = {}  # of train mode only where the model needs nothing more for it
        hooks = [
            module.register_forward_hook(self._hook(name), with_kwargs=True)
            for name, module in model.named_modules(remove_duplicate=False)
        ]
        for training in (False, True):
            try:
                self._outputs[training] = shape_of(run(model, sample, training))
            except Exception as error:
                if not training:
                    kind = type(sample)
                    is_table = kind.__module__.partition(".")[0] in ("numpy", "pandas")
                    remedy = f"; sample is of {kind.__module__}, so use torch.tensor(...) of it" if is_table else ""
                    raise ConfigError(f"the base model failed on the sample: {first_line(error)}{remedy}") from error
        for hook in hooks:
            hook.remove()

    def check_replaceable(self, component: Modules) -> None:
        """Check that the modules of a component are used, and that identity can replace them."""
        used = [path for path in component.paths if path in self._shapes]
        if not used:
            named = ", ".join(map(repr, component.paths))
            modes = "in eval or train mode" if True in self._outputs else "in eval mode, and does not run in train mode"
            raise ConfigError(
                f"the model never uses {named} ({component.name!r}) on the sample {modes}; remove it from the study"
            )
        for path in used if component.replace == "identity" else ():
            given, made, firsts = self._shapes[path]
            if given not in (made, *firsts):
                remedy = "replace='zero', or a module with these shapes" if firsts else "a custom module"
                raise ConfigError(
                    f"module {path!r} turns {given} into {made}, so identity cannot replace it; use {remedy}"
                )

    def check_variant(self, name: str, replaced: Iterable[Modules], model: nn.Module, sample: Any) -> None:
        """Check that a variant's model runs, and that its output has the shapes of the base model's."""
        paths = [path for component in replaced for path in component.paths]
        blamed = f" with {', '.join(map(repr, paths))} replaced" if paths else ""
        for training, expected in self._outputs.items():
            mode = " in train mode" if training else ""
            try:
                made = shape_of(run(model, sample, training))
            except Exception as error:
                raise ConfigError(
                    f"the model of {name!r} failed on the sample{mode}{blamed}: {first_line(error)}"
                ) from error
            if made != expected:
                raise ConfigError(
                    f"the model of {name!r}{blamed} must give {expected} as the base does, got {made}{mode}"
                )

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            given = first_input(first_name(module), inputs, named)
            firsts = [shape_of(tensor) for tensor in tensors(output)[:1]]
            self._shapes.setdefault(name, (shape_of(given), shape_of(output), firsts))

        return keep
