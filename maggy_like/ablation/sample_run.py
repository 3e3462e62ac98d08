"""Run the base model on the sample, and compare every other model with it. Only ``modules`` imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maggy_like.ablation.modules import first_input, first_line, first_name, run, shape_of, tensors
from maggy_like.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from maggy_like.ablation.components import Modules
    from maggy_like.ablation.variant import Variant


class SampleRun:
    """A run of the base model on the sample, in eval and in train mode.

    Args:
        model: Base model.
        sample: Input of the model: a tensor, or a tuple of tensors.

    Raises:
        ConfigError: The model does not run in eval mode.
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
                    raise ConfigError(f"the base model failed on the sample: {first_line(error)}") from error
        for hook in hooks:
            hook.remove()

    def check_replaceable(self, component: Modules) -> None:
        """Check that the modules of a component are used, and that identity can replace them.

        Raises:
            ConfigError: They are not, or it cannot.
        """
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

    def check_variant(self, variant: Variant, model: nn.Module, sample: Any) -> None:
        """Check that a variant's model runs, and that its output has the shapes of the base model's.

        Raises:
            ConfigError: It does not.
        """
        paths = [path for component in variant.replaced for path in component.paths]
        blamed = f" with {', '.join(map(repr, paths))} replaced" if paths else ""
        for training, expected in self._outputs.items():
            mode = " in train mode" if training else ""
            try:
                made = shape_of(run(model, sample, training))
            except Exception as error:
                raise ConfigError(
                    f"the model of {variant.name!r} failed on the sample{mode}{blamed}: {first_line(error)}"
                ) from error
            if made != expected:
                raise ConfigError(
                    f"the model of {variant.name!r}{blamed} must give {expected} as the base does, got {made}{mode}"
                )

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            given = first_input(first_name(module), inputs, named)
            firsts = [shape_of(tensor) for tensor in tensors(output)[:1]]
            self._shapes.setdefault(name, (shape_of(given), shape_of(output), firsts))

        return keep
