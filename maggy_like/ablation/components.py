"""The components of a study: columns, modules and parameters, checked when they are declared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean, short


def columns_of(table: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, or of a list of names."""
    # Kinds of tables are told apart by their classes, since columns are attributes of tables of pandas and Spark.
    is_arrow = hasattr(type(table), "column_names")  # whose `columns` are the data
    names = table.column_names if is_arrow else getattr(table, "columns", table)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(
            f"data must be a pandas, Arrow or Spark table, or a list of column names, got {type(table).__name__}"
        )
    columns = tuple(names)
    for name in columns:
        if not isinstance(name, str):
            raise ConfigError(f"the names of columns must be strings, got {name!r}; rename the column")
    return columns


def without(table: Any, columns: Iterable[str]) -> Any:
    """Return the table without some of its columns."""
    columns, known = list(columns), columns_of(table)
    for name in columns:
        if name not in known:
            raise ConfigError(f"the table must have the column {name!r} to leave it out{did_you_mean(name, known)}")
    if hasattr(type(table), "drop_columns"):  # Arrow
        return table.drop_columns(columns)
    if hasattr(type(table), "loc"):  # pandas
        return table.drop(columns=columns)
    return table.drop(*columns)  # Spark


def read_factory(model: object) -> Callable[..., Any] | None:
    """Check the function that builds the model. A model is rejected, because each trial needs a new one."""
    if hasattr(model, "named_modules") and not isinstance(model, type):  # of torch, and callable as all of them are
        raise ConfigError(
            f"model must be a function that builds a new model for each trial, got a {type(model).__name__}; use "
            f"AblationStudy(model=lambda: {type(model).__name__}(...))"
        )
    if model is None or callable(model):
        return model
    raise ConfigError(f"model must be a function that builds a model, got {short(model)}; use a def or a lambda")


def read_columns(data: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, which must be different; none without a table."""
    columns = () if data is None else columns_of(data)
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise ConfigError(f"the columns of data must have different names, got {twice[0]!r} twice; rename one")
    return columns


def read_labels(label: Any, data: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that are not features."""
    labels = (label,) if isinstance(label, str) else tuple(label) if isinstance(label, Iterable) else (label,)
    for name in labels:
        if not isinstance(name, str):
            raise ConfigError(
                f"label must be the name of a column or a list of names, got {label!r}; omit it if there is no label"
            )
        if data is None:
            raise ConfigError(
                f"label must be a column of data, got {name!r} without data; use AblationStudy(data=table, ...)"
            )
        if name not in columns:
            raise ConfigError(f"label must be a column of data, got {name!r}{did_you_mean(name, columns)}")
    if data is not None and not set(columns) - set(labels):
        raise ConfigError("data must have a column in addition to the label, got no features; omit data")
    return labels


def read_config(config: Any) -> dict[str, Any]:
    """Check the study's parameters."""
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(name, str) for name in config)):
        raise ConfigError(f"config must be a dict {{name: value}}, got {short(config)}")
    return dict(config or {})


def read_members(group: str, components: tuple[Any, ...]) -> tuple[str, ...]:
    """Return names and globs of a group's components, of which there must be at least one."""
    if not isinstance(group, str):
        raise ConfigError(
            f"the name of a group must be a word, got {group!r}; use study.group('regularization', 'dropout')"
        )
    if not components:
        raise ConfigError(f"the group {group!r} must have at least one component, got none")
    for name in components:
        if not isinstance(name, str):
            raise ConfigError(
                f"the components of the group {group!r} must be names or globs, got {name!r}; pass them one by one: "
                "study.group('regularization', 'dropout', 'norm')"
            )
    return components


def check_unlabelled(patterns: Iterable[str], labels: tuple[str, ...]) -> None:
    """Check that no label is used as a feature."""
    for name in patterns:
        if name in labels:
            raise ConfigError(
                f"features must not have the label, got {name!r}; remove it from the features or from label"
            )


Patterns = str | Iterable[str]
"""One name or glob, or several."""


@dataclass(frozen=True)
class Features:
    """Columns of a table, left out together."""

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Modules:
    """Modules of a torch model, replaced together.

    ``replace`` is ``"identity"``, ``"zero"``, a module, or a function of the replaced module. With a module, each place
    gets a copy, whose weights are drawn again by its ``reset_parameters()`` with the trial's seed. If it has no such
    method, its values are kept.
    """

    name: str
    paths: tuple[str, ...]  # names as in `named_modules()`; for a shared module, all of them
    replace: Any


@dataclass(frozen=True)
class Setting:
    """A parameter with the value that stands for its removal."""

    name: str
    value: Any


@dataclass(frozen=True)
class WantedModules:
    """Modules as the user named them, before they are looked up in the model."""

    name: str | None  # of the group; None if every matching module is a component
    patterns: tuple[str, ...]  # names and globs
    replace: Any  # as in Modules

    def among(self, known: Mapping[str, Sequence[str]]) -> list[Modules]:
        """Return the components for these modules in a model.

        ``known`` has all names of each module by each name of it, and none for a container. Of nested modules, only the
        outermost is taken; a container stands for the modules in it. Every name and glob must match.
        """
        if self.name is not None:
            return [self._component(self.name, _outermost(matching(self.patterns, known, "module", self.name), known))]
        made: dict[tuple[str, ...], Modules] = {}
        for pattern in self.patterns:
            inside = _outermost(matching([pattern], known, "module", None), known)
            groups = {pattern: inside} if pattern in known else {path: {path: inside[path]} for path in inside}
            for name, places in groups.items():
                component = self._component(name, places)
                made.setdefault(component.paths, component)
        return list(made.values())

    def _component(self, name: str, places: Mapping[str, Sequence[str]]) -> Modules:
        return Modules(name, tuple(dict.fromkeys(path for paths in places.values() for path in paths)), self.replace)


def named(
    positional: Iterable[str | Mapping[str, Patterns]], groups: Mapping[str, Patterns], what: str
) -> list[tuple[str | None, tuple[str, ...]]]:
    """Return what was asked for: (None, patterns) for single components, (name, patterns) for groups."""
    asked: list[tuple[str | None, tuple[str, ...]]] = []
    for item in positional:
        if isinstance(item, Mapping):
            asked += [(name, _patterns(name, patterns, what)) for name, patterns in item.items()]
        else:
            asked.append((None, _patterns(None, item, what)))
    asked += [(name, _patterns(name, patterns, what)) for name, patterns in groups.items()]
    if not asked:
        raise ConfigError(f"{what}s() must have at least one name, glob or group, got none")
    return asked


def matching(patterns: Iterable[str], known: Iterable[str], what: str, group: str | None) -> list[str]:
    """Return the names in ``known`` that match, in their order. Every pattern must match.

    Example:
        >>> matching(["*area*"], ["radius", "mean area", "worst area"], "column", None)
        ['mean area', 'worst area']
    """
    known = list(known)
    found: set[str] = set()
    for pattern in patterns:
        fits = [pattern] if pattern in known else [name for name in known if fnmatchcase(name, pattern)]
        if not fits:
            of = f" of the group {group!r}" if group is not None else ""
            raise ConfigError(f"there is no {what} {pattern!r}{of}{did_you_mean(pattern, known)}; {_listed(known)}")
        found.update(fits)
    return [name for name in known if name in found]


def _outermost(names: Iterable[str], known: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return all names of the outermost modules, with containers replaced by their modules."""
    found = list(names)
    for name in found:  # which grows
        if not known[name]:
            found += [inner for inner in known if inner.rpartition(".")[0] == name]
    whole = {name for name in found if known[name]}
    if not whole:
        raise ConfigError(
            f"{', '.join(found)} must have a forward or modules to be replaced, got neither; remove it from the study"
        )
    return {name: known[name] for name in known if name in whole and not _lies_in(name, whole)}


def _lies_in(name: str, outer: Iterable[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in outer)


def _patterns(group: str | None, patterns: object, what: str) -> tuple[str, ...]:
    listed = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else ()
    if group is not None and not listed:
        raise ConfigError(f"the group {group!r} must have at least one name or glob of a {what}, got none")
    if not listed or not all(isinstance(pattern, str) and pattern for pattern in listed):
        raise ConfigError(f"a {what} must be given by its name or a glob, got {patterns!r}")
    return listed


def _listed(known: list[str]) -> str:
    if not known:
        return "there are none"
    shown = ", ".join(map(repr, known[:12]))
    return f"there are {shown}" + (f" and {len(known) - 12} more" if len(known) > 12 else "")
