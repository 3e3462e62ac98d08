"""The declaration of a study: the parts of a training run that may be removed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from maggy_like.ablation import checks
from maggy_like.ablation import components as arguments
from maggy_like.ablation.components import (
    Features,
    Patterns,
    Setting,
    WantedModules,
    matching,
    named,
)
from maggy_like.ablation.design import DESIGNS, Design, DesignName, make_design
from maggy_like.ablation.variant import Component, Custom, Declaration, Variant, taken
from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean, explains_init, no_attribute, short
from optimizers.comparisons.paired_tests import power

_ELSEWHERE = {
    **dict.fromkeys(("layer", "layers", "model"), "modules(...)"),
    **dict.fromkeys(("column", "columns_of", "feature"), "features(...)"),
    **dict.fromkeys(("exclude", "include", "remove"), "features(...), modules(...) or config(...)"),
    **dict.fromkeys(("fit", "run"), "ablate(train_fn, study)"),
}
"""What the first Maggy, and a first guess, call the methods of a study."""


@explains_init
class AblationStudy(Declaration):
    """Declare components that a training may be run without. Each method returns a new study; none is changed.

    Args:
        model: Function that builds the model. It is called by the names of its parameters: those of ``config`` (all of
            them if it takes ``**``), and with ``data`` also ``features`` (the kept columns) and ``n_features`` (their
            number).
        data: Table of pandas, Arrow or Spark, or the names of its columns. Only the names are kept. The training
            function loads the data itself, and removes columns by :meth:`Variant.apply`.
        label: Name of the label column, or a list of names. These columns are not features.
        sample: Input of the model: a tensor, a tuple or dict of tensors, or a function that returns one of these
            (called by names, as ``model`` is). All variants are run on it before any trial, so that shapes that do not
            fit are reported early. A tensor whose last axis has all features is cut to those of the variant, as is a
            dict with all columns by their names.
        config: Parameters of ``train_fn`` and of ``model`` with nothing removed. You may omit an ablated parameter if
            one of the two functions has a default for it. A parameter that ``train_fn`` takes by name, in ``config``
            or by ``**`` must be a bool, a number, a string or None, as in a search.

    Raises:
        ConfigError: An argument is invalid.

    Example:
        >>> study = (
        ...     AblationStudy(model=make_network, data=table, label="target", sample=torch.zeros(2, 30))
        ...     .features(size=["*radius*", "*area*"], texture="*texture*")
        ...     .modules("norm", residual="block.inner")
        ...     .config(dropout=0.0)
        ... )
        >>> [variant.name for variant in study.designed().variants]
        ['base', 'without size', 'without texture', 'without norm', 'without residual', 'without dropout']
    """

    def __init__(
        self,
        *,
        model: Callable[..., Any] | None = None,
        data: Any = None,
        label: str | Iterable[str] = (),
        sample: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if sample is not None and model is None:
            raise ConfigError(
                "sample must be given with a model, got none; use AblationStudy(model=make_model, sample=...)"
            )
        self.factory = arguments.read_factory(model)
        self.sample = sample
        self.base = arguments.read_config(config)
        columns = arguments.read_columns(data)
        self.labels = arguments.read_labels(label, data, columns)
        self.columns = tuple(name for name in columns if name not in self.labels)
        self.asked = ()
        self.groups = {}
        self.taken = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

    def features(self, *columns: str | Mapping[str, Patterns], **groups: Patterns) -> Self:
        """Ablate columns of the table.

        Args:
            *columns: Names or globs. Every matching column is a component. A dict declares groups whose names are not
                Python identifiers.
            **groups: Names or globs. All matching columns together are one component of that name.

        Raises:
            ConfigError: There is no such column, or a group is empty.

        Example:
            >>> study = AblationStudy(data=["age", "height", "weight", "city", "target"], label="target")
            >>> study.features("age", "c*", body=["height", "weight"])
            AblationStudy('age', 'city', 'body')
        """
        if not self.columns:
            raise ConfigError(
                "features() must have a table, got none; use AblationStudy(data=table), or the names of its columns"
            )
        made: list[Component] = []
        for name, patterns in named(columns, groups, "column"):
            arguments.check_unlabelled(patterns, self.labels)
            found = matching(patterns, self.columns, "column", name)
            made += [Features(one, (one,)) for one in found] if name is None else [Features(name, tuple(found))]
        return self._with(*made)

    def modules(self, *paths: str | Mapping[str, Patterns], replace: Any = "identity", **groups: Patterns) -> Self:
        """Ablate modules of the torch model, by their names in ``named_modules()``.

        Of nested modules that match a glob, the outermost is taken. A container (``ModuleList``) stands for the
        modules in it. A shared module is replaced under all its names.

        Args:
            *paths: Names or globs. Every matching module is a component. A dict declares groups.
            replace: Replacement: ``"identity"``; ``"zero"`` (zeros with the shape of the module's output); a module;
                or a function of the replaced module. With a module, each place gets a copy, whose weights are drawn
                again by its ``reset_parameters()``, if it has that method.
            **groups: Names or globs. All matching modules together are one component of that name.

        Raises:
            ConfigError: The study has no model, a group is empty, or ``replace`` is none of these.

        Example:
            >>> study = AblationStudy(model=make_network).modules("norm")
            >>> study = study.modules(residual="block.inner", replace="zero")
            >>> [component.paths for component in study.components]
            [('norm',), ('block.inner',)]
        """
        if self.factory is None:
            raise ConfigError("modules() must have a model, got none; use AblationStudy(model=make_model)")
        if not callable(replace) and replace not in ("identity", "zero"):
            raise ConfigError(
                f"replace must be 'identity', 'zero', a module or a function of one, got {short(replace)}"
            )
        return self._with(*(WantedModules(name, paths, replace) for name, paths in named(paths, groups, "module")))

    def config(self, *unnamed: Any, **values: Any) -> Self:
        """Ablate parameters of ``train_fn`` or of the model's factory.

        Args:
            *unnamed: Not used. Name the parameters.
            **values: For each parameter, the value that stands for its removal.

        Example:
            >>> AblationStudy().config(dropout=0.0, augment=False)
            AblationStudy('dropout', 'augment')
        """
        if unnamed:
            name = unnamed[0] if isinstance(unnamed[0], str) and unnamed[0].isidentifier() else "dropout"
            raise ConfigError(
                f"config() must get parameters by name, got {short(unnamed[0])}; use config({name}=...) with the value "
                "that stands for its removal"
            )
        return self._with(*(Setting(name, value) for name, value in values.items()))

    def custom(self, name: str, change: Callable[[Variant], Variant]) -> Self:
        """Ablate anything else.

        Args:
            name: Name of the component.
            change: Function from a variant to the variant without the component, made by :meth:`Variant.changed`. It
                must depend only on its argument. The arguments of ``changed`` are sent to the workers.

        Example:
            >>> def plain(variant):
            ...     return variant.changed(config={"decay": 0.0, "clip": 0.0})
            >>> study = AblationStudy(config={"decay": 0.01, "clip": 1.0}).custom("regularization", plain)
            >>> study.without("regularization").config
            {'decay': 0.0, 'clip': 0.0}
        """
        if not callable(change):
            raise ConfigError(f"the change of {name!r} must be a function of a variant, got {short(change)}")
        return self._with(Custom(name, change))

    def group(self, name: str, *components: str) -> Self:
        """Group components of any kind, for the design ``"leave_one_group_out"``.

        Args:
            name: Name of the group.
            *components: Names of components, or globs.

        Raises:
            ConfigError: The group is empty, or its name is in use.

        Example:
            >>> study = AblationStudy(config={"dropout": 0.2, "decay": 0.01}).config(dropout=0.0, decay=0.0)
            >>> design = study.group("regularization", "dropout", "decay").designed("leave_one_group_out")
            >>> [variant.name for variant in design.variants]
            ['base', 'without regularization']
        """
        members = arguments.read_members(name, components)
        if name in self.groups:
            raise ConfigError(f"groups must have different names, got {name!r} twice; rename one")
        made = copy.copy(self)
        made.groups = {**self.groups, name: members}
        return made

    @property
    def components(self) -> tuple[Component, ...]:
        """The components in the order of their declaration, with modules looked up in the model.

        Raises:
            ConfigError: The study is invalid (see :meth:`bound`).
        """
        return self.bound().found

    def bound(self, train_fn: Callable[..., Any] | None = None) -> Self:
        """Return this study checked against a training function and its model, with all values known.

        Args:
            train_fn: Training function. Default: None, which skips its part of the checks.

        Raises:
            ConfigError: There are no components, two have the same name, a module is unknown, or the value of a
                parameter with nothing removed is unknown or is the one that stands for its removal.
            TrainFunctionError: ``train_fn`` takes no seed or nothing that a component changes, or neither it nor the
                model's factory takes a parameter of the study.

        Example:
            >>> study = AblationStudy().config(dropout=0.0)
            >>> study.bound(train_fn).base  # the default of train_fn
            {'dropout': 0.1}
        """
        if train_fn is None and self.taken is not None:
            return self
        if not self.asked:
            raise ConfigError(
                "the study must have components, got none; use study = study.features(...), .modules(...) or "
                ".config(...), each of which returns a new study"
            )
        made = copy.copy(self)
        made.base = checks.base_config(self, train_fn)
        made.asked = checks.resolved(made)
        made.groups = {name: checks.members(made, name, patterns) for name, patterns in self.groups.items()}
        made.taken = () if train_fn is None else taken(made, train_fn)
        return made

    def designed(self, design: DesignName = "leave_one_out", *, limit: int = 64) -> Design:
        """Return the variants to try, and the comparisons between them.

        Every model is built once, to count its parameters and, if there is a sample, to check that it runs.

        Args:
            design: ``"leave_one_out"`` (each component removed), ``"leave_one_group_out"`` (each group of
                :meth:`group` removed), ``"add_one_in"`` (only one component kept, compared with none), ``"pairs"``
                (each component and each pair removed, for their interactions) or ``"factorial"`` (all combinations).
            limit: Maximum number of variants. Default: 64.

        Raises:
            ConfigError: The design is unknown, has more variants than ``limit``, or a variant's model does not run.

        Example:
            >>> [effect.label for effect in study.designed("pairs").effects]
            ['norm', 'dropout', 'norm and dropout', 'norm x dropout']
        """
        if design not in DESIGNS:
            raise ConfigError(f"design must be one of {[*DESIGNS]}, got {design!r}{did_you_mean(str(design), DESIGNS)}")
        return make_design(self.bound(), design, limit)

    def power(
        self, *, effect: float, sd: float, repeats: int, design: DesignName = "leave_one_out", resampled: float = 0.0
    ) -> float:
        """Return the probability that a component with a true difference of ``effect`` is found.

        Use it to choose ``repeats`` before you spend many trials. If only ``train_fn`` has the defaults of some
        parameters, call it on ``study.bound(train_fn)``.

        Args:
            effect: Size of the difference, in units of the metric.
            sd: Standard deviation of paired differences, in the same units. Estimate it from a pilot with a few seeds:
                ``difference`` divided by ``effect_size`` in ``to_pandas()`` of its answer.
            repeats: Number of seeds of each variant.
            design: Design. Its comparisons are tested together, as in :func:`maggy_like.ablate`.
            resampled: Ratio of test rows to training rows, as in :func:`maggy_like.ablate`. Default: 0.

        Returns:
            The probability, from 0 to 1.

        Raises:
            UserError: An argument is invalid.

        Example:
            >>> round(study.power(effect=0.01, sd=0.01, repeats=20), 2)
            0.97
        """
        contrasts = [*self.designed(design).contrasts.values()]
        return power(effect, sd, repeats, contrasts=contrasts, resampled=resampled)

    def without(self, *names: str, called: str | None = None) -> Variant:
        """Return the variant without some components, for example to inspect it in a notebook.

        Args:
            *names: Names of components. Default: none, which returns the base.
            called: Name of the variant. Default: made from the names of the components.

        Raises:
            ConfigError: There is no such component.

        Example:
            >>> study.without("dropout", "norm").model().norm
            Identity()
        """
        bound = self.bound()
        known = [component.name for component in bound.found]
        for name in names:
            if name not in known:
                near = did_you_mean(str(name), known)
                raise ConfigError(f"names must be components of the study, got {name!r}{near}; use some of {known}")
        return bound.variant(*names, called=called)

    def __repr__(self) -> str:
        shown = (c.patterns if isinstance(c, WantedModules) and c.name is None else (c.name,) for c in self.asked)
        listed = ", ".join(repr(name) for names in shown for name in names)
        return f"AblationStudy({listed})"

    def _with(self, *components: Component | WantedModules) -> Self:
        made = copy.copy(self)
        made.asked = (*self.asked, *components)
        made.taken = None
        checks.distinct(made.asked)
        return made
