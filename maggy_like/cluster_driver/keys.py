"""Key pairs made before the run, for all incarnations of its workers that may come.

Spark runs a failed task again by itself, with the same row of data and the next attempt number. So the row of a worker
holds a pair for each of its incarnations; those of the others it does not see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from maggy_like.errors import EngineError
from maggy_like.protocol.task import KeyPair
from maggy_like.rpc.security import new_key_pair

ROUNDS = 4
"""Incarnations of a worker within one attempt of its task: each ends where the driver is lost, or gives it up."""

SPARE_ATTEMPTS = 12
"""Attempts beyond the failures that Spark allows a task: those that lost executors cost do not count as failures."""


@dataclass(frozen=True)
class Keys:
    """The pairs of one worker, by incarnation."""

    pairs: tuple[KeyPair, ...]

    @classmethod
    def make(cls, max_failures: int) -> Keys:
        """New pairs, for a task that may fail so often."""
        return cls(tuple(new_key_pair() for _ in range((max_failures + SPARE_ATTEMPTS) * ROUNDS)))

    @property
    def public(self) -> tuple[bytes, ...]:
        """What the driver is given of them."""
        return tuple(public for public, _ in self.pairs)

    def of_attempt(self, attempt: int) -> Iterator[tuple[int, KeyPair]]:
        """The incarnations of one attempt of the task, each with its pair.

        Raises:
            EngineError: There are none left.
        """
        epochs = range(attempt * ROUNDS, (attempt + 1) * ROUNDS)
        if epochs.stop > len(self.pairs):
            raise EngineError(
                f"Spark ran this worker's task {attempt + 1} times, and its keys are used up; go on with resume=True"
            )
        return ((incarnation, self.pairs[incarnation]) for incarnation in epochs)
