"""What becomes of a trial that fails, and when failures end the whole search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maggy_like.argument_checks import seconds, whole
from maggy_like.errors import ConfigError
from optimizers.checks.arguments import explains_init
from optimizers.checks.near_names import class_name
from optimizers.checks.options import as_int

LEAST_ALIKE = 3
"""Trials that must have failed alike before a search is ended for it, however narrow its gang is."""

LEAST_SILENCE = 1.0
"""Seconds below which a worker cannot tell a trial that is silent from one whose reports are on their way."""


@explains_init
@dataclass(frozen=True)
class FailurePolicy:
    """What becomes of a trial that fails, and when failures end the whole search.

    A trial that fails of whatever it may be (an exception, a crash, a time limit, a lost worker) runs again from its
    last checkpoint. An attempt that fails just as the one before, and got no further, is the last; so is one that
    reported what is no number.

    A typo in the training function fails each trial. Once so many trials have failed alike, and none has succeeded,
    the search ends, and :func:`~maggy_like.lagom` raises a :class:`~maggy_like.errors.TrialsFailedError` with the
    traceback. Alike are exceptions of one type at one place (file, function and line), whatever their messages say,
    and crashes of one kind. An attempt that returned or was paused has succeeded; reports are not enough, so one
    that was stopped early has not. What machines do (lost workers, a store that is away) never counts.

    Args:
        max_attempts: How many attempts a trial has.
        trial_timeout: Seconds that one attempt may take; one that does not report then is killed 5 seconds later.
        report_timeout: Seconds, 1 at least, that an attempt may go on without a report or a checkpoint; one that
            does not report for as long again is killed, after 5 seconds at most.
        min_workers: How many workers are enough. Lost ones that do not come back within 30 s are no longer waited for
            then, and a training goes on from its checkpoint with fewer; :meth:`Reporter.prepare` keeps the batch.
        alike: How many trials that fail alike end the search; None for as many as run at a time, and at least 3;
            0 for never.
        expected: Exceptions that are part of the search, such as those of configurations that cannot be built. They
            fail their trial, and never count.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, failures=FailurePolicy(max_attempts=5, expected=(torch.cuda.OutOfMemoryError,)))
    """

    max_attempts: int = 3
    trial_timeout: float | None = None
    report_timeout: float | None = None
    min_workers: int | None = None
    alike: int | None = None
    expected: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        self._set("max_attempts", whole("max_attempts", self.max_attempts, least=1))
        self._set("trial_timeout", seconds("trial_timeout", self.trial_timeout))
        self._set("report_timeout", seconds("report_timeout", self.report_timeout, least=LEAST_SILENCE))
        if self.min_workers is not None:
            self._set("min_workers", whole("min_workers", self.min_workers, least=1))
        if self.alike is not None and (
            isinstance(self.alike, bool) or not isinstance(self.alike, int) or self.alike < 0
        ):
            hint = as_int(self.alike, 0)
            raise ConfigError(
                f"alike must be a whole number, 0 to go on whatever fails, or None for the default, got {self.alike!r}"
                f"{hint and '; '}{hint}"
            )
        if not isinstance(self.expected, tuple):
            raise ConfigError(f"expected must be a tuple of exceptions, got {self.expected!r}; use (ValueError,)")
        for kind in self.expected:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"expected must hold classes of exceptions, got {kind!r}; use (ValueError,)")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def enough(self, width: int) -> int:
        """How many trials that fail alike end a search in which ``width`` run at a time; 0 for never."""
        return max(LEAST_ALIKE, width) if self.alike is None else self.alike

    @property
    def names(self) -> frozenset[str]:
        """The expected exceptions by the names that workers send."""
        return frozenset(map(class_name, self.expected))


def read_policy(failures: Any) -> FailurePolicy:
    """The policy that was given, or the default.

    Raises:
        ConfigError: It is none.
    """
    if failures is None:
        return FailurePolicy()
    if not isinstance(failures, FailurePolicy):
        raise ConfigError(f"failures must be a FailurePolicy, got {failures!r}; use FailurePolicy(max_attempts=5)")
    return failures
