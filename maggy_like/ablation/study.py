"""What is studied: a training function's parts, declared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

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
from optimizers.checks import did_you_mean
from optimizers.comparisons.paired_tests import power


class AblationStudy(Declaration):
    """Components that a training may do without. Each method returns a new study; none is changed.

    Args:
        model: A function that builds the model, called by the names of its parameters: those of ``config`` (all of
            them if it takes ``**``), and with data ``features`` (the columns kept) and ``n_features`` (how many).
        data: A pandas, Arrow or Spark table, or the names of its columns. Only the names are kept: workers load
            their data themselves and cut it with :meth:`Variant.apply`.
        label: The column, or columns, that are no features.
        sample: What the model takes: a tensor, a tuple or dict of them, or a function that makes one of these (called
            by names, as ``model`` is). All variants are run on it before anything else, so that shapes that do not fit
            are told then. A tensor whose last axis is as long as there are features is cut to those of the variant,
            as is a dict that has all columns by their names.
        config: Parameters of ``train_fn`` and of ``model`` as they are with nothing removed. A parameter that is
            ablated may be left out here if one of the two functions has a default for it. What ``train_fn`` takes by
            name, in ``config`` or by ``**`` is a bool, a number, a string or None, as in a search.

    Raises:
        ConfigError: An argument is not valid.

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
            raise ConfigError("sample is for the model, and the study has none; give model=make_model")
        self.factory = arguments.read_factory(model)
        self.sample = sample
        self.base = arguments.read_config(config)
        columns = arguments.read_columns(data)
        self.labels = arguments.read_labels(label, data, columns)
        self.columns = tuple(name for name in columns if name not in self.labels)
        self.asked = ()
        self.groups = {}
        self.taken = None

    def features(self, *columns: str | Mapping[str, Patterns], **groups: Patterns) -> Self:
        """Ablate columns of the table.

        Args:
            *columns: Names or globs: every column that fits is a component of its own. A dict has groups whose names
                are no Python identifiers.
            **groups: Names or globs: all columns that fit are one component, of that name.

        Raises:
            ConfigError: There is no such column, or a group has nothing in it.

        Example:
            >>> study.features("mean radius", "worst *", texture="*texture*")
        """
        if not self.columns:
            raise ConfigError("features are columns of a table; give it, or its columns: AblationStudy(data=table)")
        made: list[Component] = []
        for name, patterns in named(columns, groups, "column"):
            arguments.check_unlabelled(patterns, self.labels)
            found = matching(patterns, self.columns, "column", name)
            made += [Features(one, (one,)) for one in found] if name is None else [Features(name, tuple(found))]
        return self._with(*made)

    def modules(self, *paths: str | Mapping[str, Patterns], replace: Any = "identity", **groups: Patterns) -> Self:
        """Ablate modules of the torch model, by their names in ``named_modules()``.

        Of modules that fit a glob and lie inside each other, the outermost is taken; a container (``ModuleList``)
        stands for the modules in it. A shared module is replaced wherever it stands.

        Args:
            *paths: Names or globs: every module that fits is a component of its own. A dict has groups.
            replace: What stands in for them: ``"identity"``; ``"zero"`` (zeros of the shape that the module would
                give); a module, of which each place gets a copy, with weights that its ``reset_parameters()`` draws
                anew, where it has such a method; or a function of the replaced module.
            **groups: Names or globs: all modules that fit are one component, of that name.

        Raises:
            ConfigError: The study has no model, a group has nothing in it, or ``replace`` is none of these.

        Example:
            >>> study.modules("block.*", normalisation="*norm*").modules(residual="inner", replace="zero")
        """
        if self.factory is None:
            raise ConfigError("modules are parts of a model; give its factory: AblationStudy(model=make_model)")
        if not callable(replace) and replace not in ("identity", "zero"):
            raise ConfigError(f"replace must be 'identity', 'zero', a module or a function of one, got {replace!r}")
        return self._with(*(WantedModules(name, paths, replace) for name, paths in named(paths, groups, "module")))

    def config(self, **values: Any) -> Self:
        """Ablate parameters of ``train_fn`` (or of the model's factory).

        Args:
            **values: For each, the value that stands for being without it.

        Example:
            >>> study.config(dropout=0.0, augment=False)
        """
        return self._with(*(Setting(name, value) for name, value in values.items()))

    def custom(self, name: str, change: Callable[[Variant], Variant]) -> Self:
        """Ablate anything else.

        Args:
            name: The component's name.
            change: A function of the variant so far that returns the one without the component, by
                :meth:`Variant.changed`. It must depend on nothing else; what it gives there travels to the workers.

        Example:
            >>> study.custom("weight decay", lambda variant: variant.changed(config={"decay": 0.0}))
        """
        if not callable(change):
            raise ConfigError(f"the change of {name!r} must be a function of a variant, got {change!r}")
        return self._with(Custom(name, change))

    def group(self, name: str, *components: str) -> Self:
        """Put components of any kind together, for the design ``"leave_one_group_out"``.

        Args:
            name: The group's.
            *components: Names of components or globs.

        Raises:
            ConfigError: The group has nothing in it, or its name is in use.

        Example:
            >>> study.group("regularisation", "dropout", "norm*")
        """
        members = arguments.read_members(name, components)
        if name in self.groups:
            raise ConfigError(f"there are two groups {name!r}; rename one")
        made = copy.copy(self)
        made.groups = {**self.groups, name: members}
        return made

    @property
    def components(self) -> tuple[Component, ...]:
        """The components in the order of their declaration, with modules looked up in the model.

        Raises:
            ConfigError: The study is not valid (see :meth:`bound`).
        """
        return self.bound().found

    def bound(self, train_fn: Callable[..., Any] | None = None) -> Self:
        """This study, checked against a training function and its model, with all values known.

        Args:
            train_fn: The training function; without one, its part of the checks is left out.

        Raises:
            ConfigError: There are no components, two have the same name, a module is unknown, a value is not known
                for the base, or is the same there.
            TrainFunctionError: ``train_fn`` takes no seed or nothing that a component changes, or neither it nor the
                model's factory takes a parameter of the study.
        """
        if train_fn is None and self.taken is not None:
            return self
        if not self.asked:
            raise ConfigError(
                "the study has no components; add some, and keep what the call returns, since a study never changes: "
                "study = study.features(...), .modules(...), .config(...)"
            )
        made = copy.copy(self)
        made.base = checks.base_config(self, train_fn)
        made.asked = checks.resolved(made)
        made.groups = {name: checks.members(made, name, patterns) for name, patterns in self.groups.items()}
        made.taken = () if train_fn is None else taken(made, train_fn)
        return made

    def designed(self, design: DesignName = "leave_one_out", *, limit: int = 64) -> Design:
        """The variants to try, and what is compared with what.

        Every model is built once, to count its parameters and, where there is a sample, to see that it runs.

        Args:
            design: ``"leave_one_out"`` (of the components), ``"leave_one_group_out"`` (of the groups that
                :meth:`group` made), ``"add_one_in"`` (each component alone, beside none of them), ``"pairs"`` (each
                component and each pair, for their interactions) or ``"factorial"`` (all combinations).
            limit: The number of variants that is not passed.

        Raises:
            ConfigError: The design is unknown, has more variants than ``limit``, or a variant's model does not run.

        Example:
            >>> study.designed("pairs").space(repeats=5)
        """
        if design not in DESIGNS:
            raise ConfigError(f"unknown design {design!r}{did_you_mean(str(design), DESIGNS)}; use one of {[*DESIGNS]}")
        return make_design(self.bound(), design, limit)

    def power(
        self, *, effect: float, sd: float, repeats: int, design: DesignName = "leave_one_out", resampled: float = 0.0
    ) -> float:
        """The probability that a component that is worth ``effect`` is found: a look before many trials are spent.

        Where ``train_fn`` alone says what a parameter is with nothing removed, look at ``study.bound(train_fn)``.

        Args:
            effect: The size of the difference, in units of the metric.
            sd: The standard deviation of paired differences. A pilot of a few seeds has it: ``difference`` by
                ``effect_size`` in its ``to_pandas()``.
            repeats: Seeds of each variant.
            design: Its comparisons are tested together, as :func:`maggy_like.ablate` does.
            resampled: As for :func:`maggy_like.ablate`.

        Raises:
            UserError: An argument is not valid.

        Example:
            >>> study.power(effect=0.01, sd=0.01, repeats=20)
            0.93
        """
        contrasts = [*self.designed(design).contrasts.values()]
        return power(effect, sd, repeats, contrasts=contrasts, resampled=resampled)

    def without(self, *names: str, called: str | None = None) -> Variant:
        """The variant without some components, for a look at it in a notebook; without any name, the base.

        Raises:
            ConfigError: There is no such component.

        Example:
            >>> study.without("dropout", "norm").model()
        """
        bound = self.bound()
        known = [component.name for component in bound.found]
        for name in names:
            if name not in known:
                near = did_you_mean(str(name), known)
                raise ConfigError(f"there is no component {name!r}{near}; there are {known}")
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
