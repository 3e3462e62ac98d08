"""The components of a study: columns, modules and parameters, checked as they are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.checks import did_you_mean


def columns_of(table: Any) -> tuple[str, ...]:
    """The names of a table's columns, or of a list of names.

    Raises:
        ConfigError: It is no table, or a column has no name.
    """
    names = getattr(table, "column_names", None)  # Arrow, whose `columns` are the data
    if names is None:
        names = getattr(table, "columns", table)
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(
            f"data must be a pandas, Arrow or Spark table, or a list of column names, got {type(table).__name__}"
        )
    columns = tuple(names)
    for name in columns:
        if not isinstance(name, str):
            raise ConfigError(f"columns are ablated by name, and one has {name!r} for a name; name it with a string")
    return columns


def without(table: Any, columns: Iterable[str]) -> Any:
    """The table without some of its columns.

    Raises:
        ConfigError: It does not have one of them.
    """
    columns, known = list(columns), columns_of(table)
    for name in columns:
        if name not in known:
            raise ConfigError(f"the table has no column {name!r} to leave out{did_you_mean(name, known)}")
    if hasattr(table, "drop_columns"):  # Arrow
        return table.drop_columns(columns)
    if hasattr(table, "loc"):  # pandas
        return table.drop(columns=columns)
    return table.drop(*columns)  # Spark


def read_factory(model: object) -> Callable[..., Any] | None:
    """What builds the model.

    Raises:
        ConfigError: It is none, or a model that is built already.
    """
    if hasattr(model, "named_modules") and not isinstance(model, type):  # of torch, and callable as all of them are
        raise ConfigError(
            f"model must build a model, anew for each trial, got a {type(model).__name__} itself; give the class or a "
            f"function: AblationStudy(model=lambda: {type(model).__name__}(...))"
        )
    if model is None or callable(model):
        return model
    raise ConfigError(f"model must be a function that builds one, got {model!r}; use a def or a lambda")


def read_columns(data: Any) -> tuple[str, ...]:
    """The names of a table's columns; none without a table.

    Raises:
        ConfigError: It is no table, or two columns have one name.
    """
    columns = () if data is None else columns_of(data)
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise ConfigError(f"data has two columns {twice[0]!r}, and columns are ablated by name; rename one")
    return columns


def read_labels(label: Any, data: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that are no features.

    Raises:
        ConfigError: One is no column, or there is no data.
    """
    labels = (label,) if isinstance(label, str) else tuple(label) if isinstance(label, Iterable) else (label,)
    for name in labels:
        if not isinstance(name, str):
            raise ConfigError(f"label must be the name of a column, or several, got {label!r}; for none, leave it out")
        if data is None:
            raise ConfigError(f"label {name!r} is a column of data, and the study has none; give data=table")
        if name not in columns:
            raise ConfigError(f"label {name!r} is no column of data{did_you_mean(name, columns)}")
    if data is not None and not set(columns) - set(labels):
        raise ConfigError("data has no column beside the label, so there are no features; leave data out")
    return labels


def read_config(config: Any) -> dict[str, Any]:
    """The study's parameters.

    Raises:
        ConfigError: They are no dict by name.
    """
    if config is not None and not (isinstance(config, Mapping) and all(isinstance(name, str) for name in config)):
        raise ConfigError(f"config must be a dict {{name: value}}, got {config!r}")
    return dict(config or {})


def read_members(group: str, components: tuple[Any, ...]) -> tuple[str, ...]:
    """Names and globs of a group's components.

    Raises:
        ConfigError: There is none, or one is no name, or the group has none.
    """
    if not isinstance(group, str):
        raise ConfigError(f"a group is called by a word, got {group!r}: study.group('regularisation', 'dropout')")
    if not components:
        raise ConfigError(f"the group {group!r} has no component in it; give at least one")
    for name in components:
        if not isinstance(name, str):
            raise ConfigError(
                f"a component of the group {group!r} is given by its name or a glob, got {name!r}; name each by "
                "itself: study.group('regularisation', 'dropout', 'norm')"
            )
    return components


def check_unlabelled(patterns: Iterable[str], labels: tuple[str, ...]) -> None:
    """Check that no label is asked for as a feature.

    Raises:
        ConfigError: One is.
    """
    for name in patterns:
        if name in labels:
            raise ConfigError(
                f"there is no column {name!r} among the features, since it is the label; leave it out of one of the two"
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

    Attributes:
        name: The component's name.
        paths: As in ``named_modules()``; of a module that is shared, all.
        replace: ``"identity"``, ``"zero"``, a module, or a function of the module that is replaced. Of a module, each
            place gets a copy, whose weights its ``reset_parameters()`` draws anew, by the seed; what has no such
            method keeps its values.
    """

    name: str
    paths: tuple[str, ...]
    replace: Any


@dataclass(frozen=True)
class Setting:
    """A parameter that gets the value that stands for being without it."""

    name: str
    value: Any


@dataclass(frozen=True)
class WantedModules:
    """Modules as the user named them, until the model is there to look them up in.

    Attributes:
        name: Of the group; None if every module that fits is a component of its own.
        patterns: Names and globs.
        replace: As in :class:`Modules`.
    """

    name: str | None
    patterns: tuple[str, ...]
    replace: Any

    def among(self, known: Mapping[str, Sequence[str]]) -> list[Modules]:
        """The components that these are in a model.

        Of modules inside each other, the outermost is taken alone; a container stands for the modules in it.

        Args:
            known: The names of all modules, with all names that each has; a container has none.

        Raises:
            ConfigError: A name is unknown, or a glob fits nothing.
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
    """What was asked for: (None, patterns) for those that stand alone, (name, patterns) for groups.

    Raises:
        ConfigError: A group has nothing in it, or something is no pattern.
    """
    asked: list[tuple[str | None, tuple[str, ...]]] = []
    for item in positional:
        if isinstance(item, Mapping):
            asked += [(name, _patterns(name, patterns, what)) for name, patterns in item.items()]
        else:
            asked.append((None, _patterns(None, item, what)))
    asked += [(name, _patterns(name, patterns, what)) for name, patterns in groups.items()]
    if not asked:
        raise ConfigError(f"{what}s need at least one name, glob or group; give one")
    return asked


def matching(patterns: Iterable[str], known: Iterable[str], what: str, group: str | None) -> list[str]:
    """The names of ``known`` that fit, in their order.

    Raises:
        ConfigError: A pattern fits none.

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
    """All names of those modules that lie in no other, with containers replaced by what is in them."""
    found = list(names)
    for name in found:  # which grows
        if not known[name]:
            found += [inner for inner in known if inner.rpartition(".")[0] == name]
    whole = {name for name in found if known[name]}
    if not whole:
        raise ConfigError(f"{', '.join(found)} has no forward and no module in it, so nothing fits there; leave it out")
    return {name: known[name] for name in known if name in whole and not _lies_in(name, whole)}


def _lies_in(name: str, outer: Iterable[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in outer)


def _patterns(group: str | None, patterns: object, what: str) -> tuple[str, ...]:
    listed = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Iterable) else ()
    if group is not None and not listed:
        raise ConfigError(f"the group {group!r} has no {what} in it; give it at least one name or glob")
    if not listed or not all(isinstance(pattern, str) and pattern for pattern in listed):
        raise ConfigError(f"a {what} is given by its name or a glob, got {patterns!r}")
    return listed


def _listed(known: list[str]) -> str:
    if not known:
        return "there are none"
    shown = ", ".join(map(repr, known[:12]))
    return f"there are {shown}" + (f" and {len(known) - 12} more" if len(known) > 12 else "")
