"""Components of a study that are declared by name: columns, modules and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean

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
