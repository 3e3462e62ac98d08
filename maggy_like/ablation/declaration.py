"""What a study declares, as plain data: the checks, the designs and the study itself read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from maggy_like.ablation.components import WantedModules
from maggy_like.ablation.variant import Component, Variant

BASE = "base"
"""Name of the variant with nothing removed."""


class Declaration:
    """The data of an :class:`~maggy_like.ablation.study.AblationStudy`.

    Attributes:
        factory: Builds the model, if there is one.
        sample: What the model is tried on.
        base: The parameters with nothing removed.
        labels: The columns that are no features.
        columns: The other columns.
        asked: The components; modules are looked up in the model once the study is bound.
        groups: Names of components, by the name of their group.
        taken: The parameters that ``train_fn`` takes by name; None until the study is bound.
    """

    factory: Callable[..., Any] | None
    sample: Any
    base: dict[str, Any]
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    asked: tuple[Component | WantedModules, ...]
    groups: dict[str, tuple[str, ...]]
    taken: tuple[str, ...] | None

    @property
    def found(self) -> tuple[Component, ...]:
        """The components, less the modules that have not been looked up in the model yet."""
        return tuple(component for component in self.asked if not isinstance(component, WantedModules))

    def variant(self, *names: str, called: str | None = None) -> Variant:
        """The variant without some of the components that were found, removed in the order of their declaration.

        Args:
            *names: Names of components; without any, nothing is removed.
            called: The variant's name; by default made from those of the components.
        """
        removed = [component for component in self.found if component.name in names]
        name = called or without_name([component.name for component in removed])
        made = Variant(name, (), list(self.columns), dict(self.base), self.factory)
        for component in removed:
            made = made.without(component)
        return made


def without_name(removed: Sequence[str]) -> str:
    """The name of a variant.

    Example:
        >>> without_name(["A", "B", "C"])
        'without A, B and C'
    """
    if not removed:
        return BASE
    *most, last = removed
    return f"without {', '.join(most)} and {last}" if most else f"without {last}"
