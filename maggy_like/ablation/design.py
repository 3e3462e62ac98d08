"""Designs: the variants of a study, and the comparisons between them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from maggy_like.ablation import checks
from maggy_like.ablation.variant import BASE, Declaration, Variant, without_name
from maggy_like.errors import ConfigError
from optimizers.comparisons.paired_tests import Contrast
from optimizers.comparisons.repeats import AdaptiveRepeats, Repeats, repeats_space
from optimizers.core.base import Optimizer
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

DesignName = Literal["leave_one_out", "leave_one_group_out", "add_one_in", "pairs", "factorial"]
DESIGNS: tuple[DesignName, ...] = ("leave_one_out", "leave_one_group_out", "add_one_in", "pairs", "factorial")

NONE = "without any"
AUTO_BOUND = 20
"""Maximum number of seeds with ``repeats="auto"``."""


@dataclass(frozen=True)
class Effect:
    """One line of the answer.

    Attributes:
        label: Component, pair or group.
        contrast: Weights of variants: without minus with, or an interaction.
        is_interaction: Whether it is the effect of removing two minus the effects of removing each.
    """

    label: str
    contrast: Contrast
    is_interaction: bool = False


@dataclass(frozen=True)
class DesignPlan:
    """A design before its variants are made: what each is without, and the comparisons. All names must differ."""

    variants: tuple[tuple[str, tuple[str, ...]], ...]
    effects: tuple[Effect, ...]

    def __post_init__(self) -> None:
        for names in ([name for name, _ in self.variants], [effect.label for effect in self.effects]):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ConfigError(
                    f"the design must have different names, got {twice[0]!r} for a component and for several together; "
                    "rename it, as in .modules(other_name=...) or .features(other_name=...)"
                )


@dataclass(frozen=True, repr=False)
class Design:
    """The variants of a study and their comparisons. It is sent to the workers, and depends only on the study.

    Attributes:
        name: Name, such as ``leave_one_out``.
        variants: All variants, the base first.
        effects: Comparisons.
        parameters: Number of parameters of each variant's model; empty without a model.
        passed: Parameters of the study in a trial's configuration, because ``train_fn`` takes them by name.

    Example:
        >>> design = study.bound(train_fn).designed("pairs")
        >>> space, optimizer = design.space(repeats=5), design.optimizer(repeats=5)
        >>> design.variant("without dropout").config["dropout"]
        0.0
    """

    name: DesignName
    variants: tuple[Variant, ...]
    effects: tuple[Effect, ...]
    parameters: Mapping[str, int]
    passed: tuple[str, ...]

    @property
    def contrasts(self) -> dict[str, Contrast]:
        """Weights of each comparison, by its label."""
        return {effect.label: effect.contrast for effect in self.effects}

    @property
    def described(self) -> tuple[str, ...]:
        """Descriptions of the variants, which change when a variant does; functions are described only by name."""
        return tuple(_described(variant) for variant in self.variants)

    @property
    def configs(self) -> dict[str, Config]:
        """Values that each variant sets in a trial's configuration, in addition to ``variant`` and ``seed``."""
        return {v.name: {name: v.config[name] for name in self.passed} for v in self.variants}

    def variant(self, name: str) -> Variant:
        """Return the variant of that name.

        Raises:
            ConfigError: There is none.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ConfigError(
            f"name must be a variant of the design, got {name!r}; use one of "
            f"{[variant.name for variant in self.variants]}"
        )

    def space(self, repeats: int | Literal["auto"], *, first_seed: int = 0) -> SearchSpace:
        """Return the search space of the trials: ``variant``, ``seed`` and the values that the variants set.

        Raises:
            SearchSpaceError: A value that ``train_fn`` takes by name is not a bool, int, float, str or None.
        """
        return repeats_space(self.configs, AUTO_BOUND if repeats == "auto" else repeats, first_seed=first_seed)

    def optimizer(
        self,
        repeats: int | Literal["auto"],
        *,
        first_seed: int = 0,
        alpha: float = 0.05,
        ahead: int = 1,
        resampled: float = 0.0,
    ) -> Optimizer:
        """Return the optimizer that enumerates the variants and seeds.

        Args:
            repeats: Number of seeds of each variant. With ``"auto"``, undecided comparisons get more, at most 20.
            first_seed: First seed.
            alpha: Maximum probability of any false difference, for ``"auto"``.
            ahead: Number of seeds after the last look that may have started, for ``"auto"``.
            resampled: Ratio of test rows to training rows if seeds split the same rows, for ``"auto"``.

        Raises:
            OptimizerError: An argument is invalid.
        """
        if repeats == "auto":
            return AdaptiveRepeats(
                self.configs,
                self.contrasts,
                AUTO_BOUND,
                first_seed=first_seed,
                alpha=alpha,
                ahead=ahead,
                resampled=resampled,
            )
        return Repeats(self.configs, repeats, first_seed=first_seed)

    def __repr__(self) -> str:
        return f"Design({self.name!r}, variants={[variant.name for variant in self.variants]})"


def make_design(study: Declaration, name: DesignName, limit: int) -> Design:
    """Make and check the variants of a bound study; see :meth:`AblationStudy.designed`."""
    components = [component.name for component in study.found]
    n = 2 ** len(components)
    if name == "factorial" and n > limit:
        raise ConfigError(
            f"the design must have at most limit={limit} variants, got {n} for {name!r} of {len(components)} "
            "components; give components that belong together one name, or use design='pairs' or 'leave_one_out'"
        )
    plan = _plan(name, components, study.groups)
    variants = tuple(study.variant(*removed, called=called) for called, removed in plan.variants)
    for variant in variants:
        if study.columns and not variant.features:
            raise ConfigError(f"the variant {variant.name!r} must have a feature, got none; remove some from the study")
    parameters = checks.run_models(study, variants)
    return Design(name, variants, plan.effects, parameters, study.taken or ())


def _plan(name: DesignName, components: list[str], groups: Mapping[str, tuple[str, ...]]) -> DesignPlan:
    if name == "leave_one_out":
        return _leave_out({component: (component,) for component in components})
    if name == "leave_one_group_out":
        if not groups:
            raise ConfigError(
                "the study must have a group of components, got none; use study.group('regularization', 'dropout')"
            )
        return _leave_out(groups)
    if name == "add_one_in":
        return _add_one_in(components)
    return _pairs(components) if name == "pairs" else _factorial(components)


def _leave_out(groups: Mapping[str, tuple[str, ...]]) -> DesignPlan:
    variants = ((BASE, ()), *((f"without {group}", members) for group, members in groups.items()))
    return DesignPlan(variants, tuple(Effect(group, {f"without {group}": 1.0, BASE: -1.0}) for group in groups))


def _add_one_in(components: list[str]) -> DesignPlan:
    variants: list[tuple[str, tuple[str, ...]]] = [(BASE, ()), (NONE, tuple(components))]
    effects = [Effect("all of them", {NONE: 1.0, BASE: -1.0})]
    for component in components if len(components) > 1 else ():
        variants.append((f"only {component}", tuple(other for other in components if other != component)))
        effects.append(Effect(component, {NONE: 1.0, f"only {component}": -1.0}))
    return DesignPlan(tuple(variants), tuple(effects))


def _pairs(components: list[str]) -> DesignPlan:
    single = _leave_out({component: (component,) for component in components})
    variants, effects = list(single.variants), list(single.effects)
    for a, b in _two(components):
        both = without_name([a, b])
        variants.append((both, (a, b)))
        effects.append(Effect(f"{a} and {b}", {both: 1.0, BASE: -1.0}))
    for a, b in _two(components):
        weights = {without_name([a, b]): 1.0, without_name([a]): -1.0, without_name([b]): -1.0, BASE: 1.0}
        effects.append(Effect(f"{a} x {b}", weights, is_interaction=True))
    return DesignPlan(tuple(variants), tuple(effects))


def _factorial(components: list[str]) -> DesignPlan:
    """All combinations; main effects and interactions of two, each averaged over all others.

    Source: Box, Hunter and Hunter, "Statistics for Experimenters", 2005, chapter 5.
    """
    subsets = [c for size in range(len(components) + 1) for c in combinations(components, size)]
    variants = tuple((without_name(subset), subset) for subset in subsets)
    half = 2.0 / len(subsets)
    effects = [Effect(a, {name: half if a in subset else -half for name, subset in variants}) for a in components]
    for a, b in _two(components):
        signs = {name: 1.0 if (a in subset) == (b in subset) else -1.0 for name, subset in variants}
        # Twice the average difference of differences over the others: the scale of the interaction in "pairs".
        weights = {name: 2.0 * half * sign for name, sign in signs.items()}
        effects.append(Effect(f"{a} x {b}", weights, is_interaction=True))
    return DesignPlan(variants, tuple(effects))


def _described(variant: Variant) -> str:
    parts = [f"column {column}" for column in variant.features] if not variant.removed else []
    parts += [f"without column {column}" for column in variant.dropped]
    parts += [f"{_word(module.replace)} for {path}" for module in variant.replaced for path in module.paths]
    parts += [f"{name}={_word(value)}" for name, value in variant.config.items()]
    parts += [f"changed by {_word(change)}" for change in (*variant.model_changes, *variant.data_changes)]
    return f"{variant.name}: {', '.join(parts) or 'nothing removed'}"


def _word(value: object) -> str:
    """Return a name for a value, without its address in memory."""
    name = getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _two(components: Sequence[str]) -> Iterator[tuple[str, str]]:
    return combinations(components, 2)
