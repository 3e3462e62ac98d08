"""When the failures of trials end the whole search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maggy_like.errors import ConfigError
from optimizers.checks.near_names import class_name

LEAST_ALIKE = 3
"""Trials that must have failed alike before a search is ended for it, however narrow its gang is."""


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """When failures end the whole search, since every further trial would fail in the same way.

    A typo in the training function fails each trial. Once so many trials have failed alike, and none has succeeded,
    the search ends, and :func:`~maggy_like.lagom` raises a :class:`~maggy_like.errors.TrialsFailedError` with the
    traceback. Alike are exceptions of one type at one place (file, function and line), whatever their messages say,
    and crashes of one kind. An attempt that returned or was paused has succeeded; reports are not enough, so one
    that was stopped early has not. What machines do (lost workers, a store that is away) never counts.

    Args:
        alike: How many trials that fail alike end the search; None for as many as run at a time, and at least 3;
            0 for never.
        expected: Exceptions that are part of the search, such as those of configurations that cannot be built. They
            fail their trial, and never count.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, failures=FailurePolicy(expected=(torch.cuda.OutOfMemoryError,)))
    """

    alike: int | None = None
    expected: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.alike is not None and (
            isinstance(self.alike, bool) or not isinstance(self.alike, int) or self.alike < 0
        ):
            raise ConfigError(
                f"alike must be a whole number, 0 to go on whatever fails, or None for the default, got {self.alike!r}"
            )
        if not isinstance(self.expected, tuple):
            raise ConfigError(f"expected must be a tuple of exceptions, got {self.expected!r}; use (ValueError,)")
        for kind in self.expected:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"expected must hold classes of exceptions, got {kind!r}; use (ValueError,)")

    def enough(self, width: int) -> int:
        """How many trials that fail alike end a search in which ``width`` run at a time; 0 for never."""
        return max(LEAST_ALIKE, width) if self.alike is None else self.alike

    @property
    def names(self) -> frozenset[str]:
        """The expected exceptions by the names that workers tell."""
        return frozenset(map(class_name, self.expected))


def read_policy(failures: Any) -> FailurePolicy:
    """The policy that was given, or the default.

    Raises:
        ConfigError: It is none.
    """
    if failures is None:
        return FailurePolicy()
    if not isinstance(failures, FailurePolicy):
        raise ConfigError(f"failures must be a FailurePolicy, got {failures!r}; use FailurePolicy(alike=5)")
    return failures
