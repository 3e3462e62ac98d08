"""Runs that are kept in an object store and nowhere else; the extra ``test`` has its server and ``s3fs``."""

from __future__ import annotations

import os

from benchmarks.platforms.object_store import URL, object_store
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import search, wrong
from benchmarks.platforms.twice import session, twice
from maggy_like import load_run


def in_a_store() -> Outcome:
    with object_store() as environment:
        os.environ |= environment
        return _search_twice()


def _search_twice() -> Outcome:
    with session("local[2]") as spark:
        outcome = twice(spark, URL)
        found = search(URL, name="again")
        outcome.wrong += [f"read from the store: {what}" for what in wrong(load_run(f"{URL}/again"))]
        if found.result.load_best()["step"] != found.result.best_step:
            outcome.wrong.append("the best state is not the one of the best step")
        return outcome


SETTINGS = {"directory=URL": in_a_store}
