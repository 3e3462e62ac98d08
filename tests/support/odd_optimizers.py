"""Optimizers for tests, in a module that their process can import."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping

import numpy as np

from optimizers.core.base import History, Optimizer
from optimizers.space import Config


class Told(Optimizer):
    """Proposes what it knows, in its space of integers: how much was observed, what is pending, its process.

    Args:
        deeds: What to do first at which ask: ``raise``, ``end`` (an EOFError of its own), ``exit``, ``kill``,
            ``kill twice`` (itself, in its first two processes), ``leave a child`` (and kill itself), ``hang``,
            ``print``.
        directory: Where processes leave their marks.
    """

    def __init__(self, deeds: Mapping[int, str] | None = None, directory: str = "") -> None:
        self.deeds = dict(deeds or {})
        self.directory = directory

    def ask(self, index: int, history: History) -> Config | None:
        self.do(self.deeds.get(index, ""))
        return {
            "observed": len(history.observations),
            "pending": sum(2**trial for trial in history.pending),
            "pid": os.getpid(),
            "threads": int(os.environ["OMP_NUM_THREADS"]),
        }

    def do(self, deed: str) -> None:
        match deed:
            case "raise":
                raise KeyError("the reason")
            case "end":
                raise EOFError("of a file of mine")
            case "exit":
                sys.exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill twice":
                marks = os.listdir(self.directory)
                if len(marks) < 2:
                    open(os.path.join(self.directory, str(os.getpid())), "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            case "leave a child":
                if os.fork() == 0:
                    signal.pause()
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                print("it hangs", flush=True)
                threading.Event().wait()
            case "print":
                print("from print")
                os.write(1, b"from the descriptor\n")
                print("from stderr", file=sys.stderr)


class Sealed(Optimizer):
    """Holds what cannot be sent."""

    def __init__(self) -> None:
        self.option = 1
        self.guard = threading.Lock()

    def ask(self, index: int, history: History) -> Config | None:
        return history.problem.space.sample(history.rng(index))


class Climber(Optimizer):
    """Moves on from the best that it knows."""

    def ask(self, index: int, history: History) -> Config | None:
        space, rng = history.problem.space, history.rng(index)
        if not history.observations:
            return space.sample(rng)
        best = min(history.observations, key=lambda seen: seen.loss)
        point = space.to_unit(best.config)
        return space.from_unit(np.clip(point + rng.normal(0.0, 0.1, len(point)), 0.0, 1.0))
