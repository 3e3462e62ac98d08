"""Modules of torch models: replaced, counted, and run on a sample. The only file of this package with torch."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from maggy_like.errors import ConfigError

if TYPE_CHECKING:
    from maggy_like.ablation.components import Modules
    from maggy_like.ablation.variant import Variant


class Zero(nn.Module):
    """Zeros of the shape that a module would give.

    The shape comes from a copy of it on torch's ``meta`` device: it computes nothing and holds no memory, and its
    parameters are none of the model's.
    """

    def __init__(self, replaced: nn.Module) -> None:
        super().__init__()
        self._shape_of = (copy.deepcopy(replaced).to("meta"),)  # in a tuple, so that it is no submodule
        self._known: dict[Any, torch.Tensor] = {}

    def forward(self, *inputs: Any) -> torch.Tensor:
        """Zeros, on the device of the first input."""
        device = next((given.device for given in inputs if isinstance(given, torch.Tensor)), None)
        key = tuple((given.shape, given.dtype) if isinstance(given, torch.Tensor) else None for given in inputs)
        if key not in self._known:
            self._known[key] = self._shaped(inputs)
        shaped = self._known[key]
        return torch.zeros(shaped.shape, dtype=shaped.dtype, device=device)

    def _shaped(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        moved = [given.to("meta") if isinstance(given, torch.Tensor) else given for given in inputs]
        with torch.no_grad():
            shaped = self._shape_of[0](*moved)
        if not isinstance(shaped, torch.Tensor):
            raise ConfigError(
                f"a {type(self._shape_of[0]).__name__} gives no single tensor that could be zero; replace it with a "
                "module of your own"
            )
        return shaped


def is_module(model: object) -> bool:
    """Whether it is a model of torch."""
    return isinstance(model, nn.Module)


def module_names(model: object) -> list[str]:
    """The names of all modules inside a model.

    Raises:
        ConfigError: It is no model of torch.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"modules are those of a torch model, and the factory returned a {type(model).__name__}")
    return [name for name, _ in model.named_modules() if name]


def n_parameters(model: nn.Module) -> int:
    """How many numbers a model learns or holds as parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def replace_modules(model: nn.Module, components: Iterable[Modules]) -> None:
    """Replace modules in place; what lies inside a module that is replaced goes with it.

    Raises:
        ConfigError: The model has no such module, or the user's function returns none.
    """
    places = {path: component.replace for component in components for path in component.paths}
    for path, how in sorted(places.items()):
        if any(path.startswith(f"{outer}.") for outer in places):
            continue
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ConfigError(
                f"the model of this variant has no module {path!r}, which the base has; let the factory name its "
                "modules the same whatever its arguments"
            ) from None
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, _substitute(module, how, path))


def cut(sample: Any, kept: Sequence[int], n_features: int) -> Any:
    """A sample with the features ``kept`` alone, in those tensors whose last axis has them all."""
    if isinstance(sample, tuple):
        return tuple(cut(part, kept, n_features) for part in sample)
    if len(kept) < n_features and isinstance(sample, torch.Tensor) and sample.shape[-1:] == (n_features,):
        return sample[..., kept]
    return sample


class Trial:
    """A run of the base model on the sample, and what it tells of variants.

    Args:
        model: The base model.
        sample: A tensor, or a tuple of them: what it takes.

    Raises:
        ConfigError: The model does not run.
    """

    def __init__(self, model: nn.Module, sample: Any) -> None:
        self._shapes: dict[str, tuple[Any, Any]] = {}
        hooks = [module.register_forward_hook(self._hook(name)) for name, module in model.named_modules() if name]
        try:
            self._output = _shape(_run(model, sample))
        except Exception as error:
            raise ConfigError(f"the base model does not run on the sample: {_first_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()

    def check_replaceable(self, component: Modules) -> None:
        """Check that the modules of a component are used, and that identity fits them.

        Raises:
            ConfigError: They are not, or it does not.
        """
        used = [path for path in component.paths if path in self._shapes]
        if not used:
            named = ", ".join(map(repr, component.paths))
            raise ConfigError(f"the model never uses {named} ({component.name!r}) on the sample; leave it out")
        for path in used if component.replace == "identity" else ():
            given, made = self._shapes[path]
            if given != made:
                raise ConfigError(
                    f"module {path!r} turns {given} into {made}, so identity cannot stand in for it; use "
                    "replace='zero', or a module with these shapes"
                )

    def check_variant(self, variant: Variant, model: nn.Module, sample: Any) -> None:
        """Check that a variant's model runs and gives what the base model gives.

        Raises:
            ConfigError: It does not.
        """
        paths = [path for component in variant.replaced for path in component.paths]
        blamed = f" with {', '.join(map(repr, paths))} replaced" if paths else ""
        try:
            made = _shape(_run(model, sample))
        except Exception as error:
            raise ConfigError(
                f"the model of {variant.name!r} does not run on the sample{blamed}: {_first_line(error)}"
            ) from error
        if made != self._output:
            raise ConfigError(f"the model of {variant.name!r}{blamed} gives {made}, and the base gives {self._output}")

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self._shapes.setdefault(name, (_shape(inputs[0] if len(inputs) == 1 else inputs), _shape(output)))

        return keep


def _substitute(module: nn.Module, how: Any, path: str) -> nn.Module:
    if how == "identity":
        return nn.Identity()
    if how == "zero":
        return Zero(module)
    made = copy.deepcopy(how) if isinstance(how, nn.Module) else how(module)
    if not isinstance(made, nn.Module):
        raise ConfigError(f"the replacement of module {path!r} must be a module, got {made!r}")
    return made


def _run(model: nn.Module, sample: Any) -> Any:
    """One step forward without a trace: neither gradients, nor statistics of batches, nor random numbers."""
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return model(*sample) if isinstance(sample, tuple) else model(sample)


def _shape(value: Any) -> Any:
    """A tensor's shape, or those of all in a tuple or dict; the type's name of anything else."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, tuple | list):
        return tuple(map(_shape, value))
    return {key: _shape(part) for key, part in value.items()} if isinstance(value, dict) else type(value).__name__


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def seed_weights(seed: int) -> None:
    """Have the weights of the next model be those of a seed."""
    torch.manual_seed(seed)
