"""Spark sessions of which only the settings are known, and resources that workers may ask of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from maggy_like import SparkEngine

RESOURCES = {"gpu": 1, "cpu": 4, "memory": "20g"}

ELASTIC = {"spark.master": "spark://far:7077", "spark.dynamicAllocation.enabled": "true"}

FIXED = {"spark.master": "spark://far:7077", "spark.executor.resource.gpu.amount": "2",
         "spark.executor.cores": "8", "spark.executor.memory": "40g"}  # fmt: skip


class Session(SimpleNamespace):
    """A classic session of which only the settings are known."""

    __hash__ = object.__hash__


def session_of(conf: dict[str, str]) -> Any:
    java = SimpleNamespace(isStopped=lambda: False)
    settings = SimpleNamespace(get=conf.get)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: java), _conf=settings)
    return Session(_sc=context, sparkContext=context, conf=settings)


def engine_on(conf: dict[str, str], **options: Any) -> SparkEngine:
    return SparkEngine(session_of(conf), **options)
