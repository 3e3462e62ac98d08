"""Where the driver listens, how its workers are told to call it, and slots that are left to others."""

from __future__ import annotations

from benchmarks.platforms.cancels import Midway
from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.twice import listening, session, twice
from maggy_like import SparkEngine

PORTS = range(23100, 23200)


def other_name() -> Outcome:
    """As behind NAT: the workers call an address at which the driver does not listen itself."""
    with session("local[2]") as spark:
        return twice(spark, engine=SparkEngine(spark, host="127.0.0.2", bind="0.0.0.0"))


def in_a_range() -> Outcome:
    found: set[int] = set()
    with session("local[2]") as spark:
        look = Midway(lambda: found.update(listening()))
        engine = SparkEngine(spark, port=f"{PORTS[0]}-{PORTS[-1]}")
        outcome = twice(spark, engine=engine, callbacks=[look])
        look.join()
        if not found & set(PORTS):
            outcome.wrong.append(f"it listened at {sorted(found)}")
        return outcome


def on_ipv6() -> Outcome:
    with session("local[2]") as spark:
        return twice(spark, engine=SparkEngine(spark, host="::1"))


def with_a_reserve() -> Outcome:
    """A job of the same user gets through while the search goes on."""
    counted: list[int] = []
    with session("local[2]") as spark:
        other = Midway(lambda: counted.append(spark.range(10).count()))
        outcome = twice(spark, engine=SparkEngine(spark, reserve=1), callbacks=[other])
        other.join()
        if counted != [10]:
            outcome.wrong.append(f"the other job counted {counted}")
        return outcome


SETTINGS = {
    "host is not bind": other_name,
    "a port of a range": in_a_range,
    "IPv6": on_ipv6,
    "reserve=1": with_a_reserve,
}
