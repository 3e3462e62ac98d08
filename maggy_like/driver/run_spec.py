"""What the runner is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from maggy_like.display import Display
from maggy_like.driver.callbacks import Listener
from maggy_like.driver.run_handle import StopSwitch
from maggy_like.driver.settings import Settings
from maggy_like.engines.base import Engine
from maggy_like.protocol.endings import Ending

if TYPE_CHECKING:
    from maggy_like.driver.state_machine import StateMachine

DriverSide = Literal["client", "cluster"]
"""Where the driver of a run is."""


@dataclass(frozen=True)
class RunSpec:
    """What to run, where, and who watches.

    Attributes:
        settings: The search and the training, checked.
        engine: Provides the workers.
        payload: The training function, pickled.
        preload: Modules that workers import once.
        displays: Show the run, each at its own pace.
        callbacks: Get each recorded event.
        stop: By which other threads stop the run.
        save_returned: Writes what the function returned, where it is no training (see
            :attr:`WorkerTask.returns_anything`).
        sources: Text of the files and notebook cells that the function's code is from.
        driver: Where the driver runs: in this process, the ``client``, or in a task of the ``cluster``.
    """

    settings: Settings
    engine: Engine
    payload: bytes
    preload: tuple[str, ...]
    displays: Sequence[Display]
    callbacks: Sequence[Listener] = ()
    stop: StopSwitch = field(default_factory=StopSwitch)
    save_returned: Callable[[Any], None] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    driver: DriverSide = "client"


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        machine: With the study.
        ending: How it ended (see :attr:`maggy_like.Result.ending`).
        seconds: Wall time in which drivers had the run, earlier ones too.
        error: What ended it early, to be raised by the caller once it has the result so far.
        is_longer: Whether they had it for longer than is known, as one was killed.
    """

    machine: StateMachine
    ending: Ending
    seconds: float
    error: Exception | None = None
    is_longer: bool = False
