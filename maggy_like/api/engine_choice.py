"""Which engine a run gets, and where its driver runs."""

from __future__ import annotations

import sys
from typing import cast, get_args

from maggy_like.argument_checks import one_of
from maggy_like.driver.run_spec import DriverSide
from maggy_like.engines.base import Engine
from maggy_like.engines.local import LocalEngine
from maggy_like.errors import ConfigError, EngineError
from optimizers.checks import did_you_mean

ENGINES = ("auto", "local", "spark", "inline")


def choose_engine(engine: str | Engine) -> Engine:
    """The engine that was asked for.

    Raises:
        ConfigError: There is none of that name.
        EngineError: It cannot be used here.
    """
    if isinstance(engine, Engine):
        return engine
    if engine not in ENGINES:
        raise ConfigError(
            f"engine must be one of {', '.join(map(repr, ENGINES))}, or an engine such as SparkEngine(...), "
            f"got {engine!r}{_meant(engine)}"
        )
    if engine == "inline":
        from maggy_like.engines.inline import InlineEngine

        return InlineEngine()
    if engine == "spark" or (engine == "auto" and "pyspark" in sys.modules):
        from maggy_like.spark.engine.engine import SparkEngine
        from maggy_like.spark.kinds import is_in_task
        from maggy_like.spark.session import active_session

        if engine == "spark" or active_session() is not None:
            return SparkEngine()
        if is_in_task():
            raise EngineError(
                "engine='auto' cannot search inside a Spark task: its processes would share the one slot of that task, "
                "unseen by Spark; call it on the Spark driver, or pass engine='local' to run it in this task"
            )
    return LocalEngine()


def _meant(engine: object) -> str:
    """What was meant instead of an engine, if that can be told."""
    if isinstance(engine, str):
        return did_you_mean(engine, ENGINES)
    if isinstance(engine, type) and issubclass(engine, Engine):
        return f" (did you mean {engine.__name__}()?)"
    if type(engine).__name__ == "SparkSession":
        return "; pass SparkEngine(session)"
    return ""


def read_driver(driver: str) -> DriverSide:
    """Where the driver is to run.

    Raises:
        ConfigError: There is no such place.
    """
    return cast(DriverSide, one_of("driver", driver, get_args(DriverSide)))
