"""Retries and time limits of trials, and when failures end the whole search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from maggy_like.argument_checks import seconds, whole
from maggy_like.errors import ConfigError
from optimizers.checks import as_int, class_name, explains_init

LEAST_IDENTICAL = 3
"""Trials that must have failed in the same way before a search ends for it, however few workers it has."""

LEAST_SILENCE = 1.0
"""Seconds below which a worker cannot distinguish a silent trial from one whose reports are on their way."""


@explains_init
@dataclass(frozen=True)
class FailurePolicy:
    """Retries of failed trials, their time limits, and when failures end the whole search.

    A trial that fails is retried from its last checkpoint, whether the cause is an exception, a crash, a time limit or
    a lost worker. A trial that fails twice in the same way without progress is not retried, and neither is one that
    reports a value that is not a number.

    A bug in the training function fails every trial. Once enough trials have failed in the same way and none has
    succeeded, the search ends, and :func:`~maggy_like.lagom` raises a
    :class:`~maggy_like.errors.TrialsFailedError` with the traceback. Two failures are the same if they are exceptions
    of one type at one place (file, function and line), or crashes of one kind. A trial succeeds if it returns or is
    paused. Failures of machines, such as lost workers or an unreachable store, never count.

    Args:
        max_attempts: Number of attempts per trial. Default 3.
        trial_timeout: Seconds that one attempt may take. An attempt that does not report then is killed 5 seconds
            later. Default no limit.
        report_timeout: Seconds, at least 1, without a report or a checkpoint after which an attempt is stopped. An
            attempt that still does not report is killed. Default no limit.
        min_workers: Number of workers that are enough. If lost workers do not return within 30 s, the run continues
            without them, and a training resumes from its checkpoint. :meth:`Reporter.prepare` keeps the batch size.
        max_identical_failures: Number of identical failures that end the search. 0 means no limit. Default the number
            of parallel trials, at least 3.
        catch: Exception types that belong to the search, such as those of configurations that do not fit into
            memory. They fail their trial and never count.

    Raises:
        ConfigError: An argument is not valid.

    Example:
        >>> lagom(train_fn, space, failures=FailurePolicy(max_attempts=5, catch=(torch.cuda.OutOfMemoryError,)))
    """

    max_attempts: int = 3
    trial_timeout: float | None = None
    report_timeout: float | None = None
    min_workers: int | None = None
    max_identical_failures: int | None = None
    catch: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        self._set("max_attempts", whole("max_attempts", self.max_attempts, least=1, remedy="use 1 for no retries"))
        self._set("trial_timeout", seconds("trial_timeout", self.trial_timeout))
        self._set("report_timeout", seconds("report_timeout", self.report_timeout, least=LEAST_SILENCE))
        if self.min_workers is not None:
            self._set("min_workers", whole("min_workers", self.min_workers, least=1))
        count = self.max_identical_failures
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 0):
            hint = as_int(count, 0)
            raise ConfigError(
                "max_identical_failures must be a whole number, 0 for no limit, or None for the default, got "
                f"{count!r}{hint and '; '}{hint}"
            )
        if not isinstance(self.catch, tuple):
            raise ConfigError(f"catch must be a tuple of exception types, got {self.catch!r}; use (ValueError,)")
        for kind in self.catch:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise ConfigError(f"catch must contain exception types, got {kind!r}; use (ValueError,)")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def enough(self, parallel: int) -> int:
        """Return how many identical failures end a search that runs ``parallel`` trials in parallel; 0 for no limit."""
        return max(LEAST_IDENTICAL, parallel) if self.max_identical_failures is None else self.max_identical_failures

    @property
    def names(self) -> frozenset[str]:
        """The caught exceptions by the names that workers send."""
        return frozenset(map(class_name, self.catch))


def read_policy(failures: Any) -> FailurePolicy:
    """Return the given policy, or the default.

    Raises:
        ConfigError: It is not a policy.
    """
    if failures is None:
        return FailurePolicy()
    if not isinstance(failures, FailurePolicy):
        raise ConfigError(f"failures must be a FailurePolicy, got {failures!r}; use FailurePolicy(max_attempts=5)")
    return failures
