"""Warnings of trials, which ``SearchCV`` raises where it is called, as scikit-learn's own searches do."""

from __future__ import annotations

import importlib
import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any

from maggy_like.processes.pickles import dumps
from optimizers.core.trial import Trial

NAME = "warnings"
"""The attribute of a trial that has its warnings, each as category, message, file and line."""

_LONGEST, _ROOM = 1000, 3500
"""Characters of a warning's message, and of all warnings of a trial as JSON: what an attribute can hold."""


def current_filters() -> list[bytes]:
    """Return the caller's filters of warnings, each pickled: a worker may lack the category of one of them."""
    return [dumps(it) for it in warnings.filters]


@contextmanager
def kept(attributes: MutableMapping[str, Any], filters: Sequence[bytes]) -> Iterator[None]:
    """Keep the warnings of a block in a trial's attributes, however it ends; ``filters`` are those of the caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filters = list(_loaded(filters))
        try:
            yield
        finally:
            found = list(dict.fromkeys(map(_described, caught)))
            sizes = accumulate(len(json.dumps(it)) for it in found)
            if found:
                attributes[NAME] = [list(it) for it, size in zip(found, sizes, strict=True) if size < _ROOM]


def _loaded(filters: Sequence[bytes]) -> Iterator[Any]:
    for pickled in filters:
        with suppress(ImportError, AttributeError):
            yield pickle.loads(pickled)  # noqa: S301  # from the caller, like the function


def _described(caught: warnings.WarningMessage) -> tuple[str, str, str, int]:
    kind = caught.category
    return f"{kind.__module__}:{kind.__qualname__}", str(caught.message)[:_LONGEST], caught.filename, caught.lineno


def show(trials: Iterable[Trial]) -> None:
    """Raise the warnings of trials, each kind once: those of one category and line. The text has the first trial."""
    seen: dict[tuple[str, str, int], tuple[str, list[int]]] = {}
    for trial in trials:
        for category, message, file, line in trial.attributes.get(NAME, ()):
            _, numbers = seen.setdefault((category, file, line), (message, []))
            numbers.append(trial.id)
    for (category, file, line), (message, numbers) in seen.items():
        others = len(set(numbers)) - 1
        also = f" and {others} other{'s' * (others > 1)}" if others else ""
        warnings.warn_explicit(f"{message} (trial {numbers[0]}{also})", _category(category), file, line)


def _category(name: str) -> type[Warning]:
    """Return a category by its name; UserWarning if only the worker has it."""
    module, _, qualified = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
