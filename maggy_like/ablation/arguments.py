"""The arguments of a study, checked as they are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from maggy_like.ablation.tables import columns_of
from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean


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
