"""Cancels from outside in mid-search: each ends it with the result so far, as Ctrl-C does."""

from __future__ import annotations

import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from benchmarks.platforms.outcome import Outcome
from benchmarks.platforms.search import search, wrong
from benchmarks.platforms.twice import left, listening, session
from maggy_like import Result
from optimizers import AttemptEnded, Event

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDED = 4
"""So many trials have ended when the cancel comes."""


LIMIT = 120.0
"""Seconds after which a search that no cancel ended gives up."""


class Midway:
    """A callback that does something once, in a thread of its own, when some trials have ended.

    Args:
        act: What to do.

    Attributes:
        struck: When it was begun.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        self.struck = float("nan")
        self._act, self._ended = act, 0
        self._thread = threading.Thread(target=self._strike)

    def __call__(self, event: Event) -> None:
        self._ended += isinstance(event, AttemptEnded)
        if isinstance(event, AttemptEnded) and self._ended == ENDED:
            self._thread.start()

    def _strike(self) -> None:
        self.struck = time.time()
        self._act()

    def join(self) -> None:
        """Wait until it is done."""
        if self._thread.ident is not None:
            self._thread.join()


def cancelled(spark: SparkSession, cancel: Callable[[], object], *, again: bool = True) -> Outcome:
    """A search that would go on for minutes, cancelled; another in the same session follows where ``again``."""
    outcome, ports, midway = Outcome(), listening(), Midway(cancel)
    found = search("cancelled", pace=0.3, n_trials=1000, timeout=LIMIT, workers=2, callbacks=[midway])
    outcome.cancel = time.time() - midway.struck
    midway.join()
    outcome.first = found.first
    outcome.wrong += not_cancelled(found.result)
    if again:
        afterwards = search("afterwards")
        outcome.second = afterwards.first
        outcome.wrong += [f"the search after it: {what}" for what in wrong(afterwards.result)]
    outcome.leftovers += left(spark if again else None, ports)
    return outcome


def not_cancelled(result: Result) -> Iterator[str]:
    """What is wrong with the result so far."""
    if result.ending != "cancelled":
        yield f"the search ended as {result.ending!r}"
    if sum(trial.state == "completed" for trial in result.trials) < ENDED:
        yield "trials that had ended are not in the result"
    if any(trial.losses + trial.stage_losses for trial in result.trials):
        yield "a trial lost an attempt"


def on_local(cancel: Callable[[SparkSession], object], conf: Mapping[str, str] | None = None) -> Outcome:
    with session("local[2]", conf) as spark:
        return cancelled(spark, lambda: cancel(spark))


def of_a_group() -> Outcome:
    with session("local[2]") as spark:
        spark.sparkContext.setJobGroup("mine", "what I do today")
        return cancelled(spark, lambda: spark.sparkContext.cancelJobGroup("mine"))


def through_the_ui(spark: SparkSession) -> None:
    """The link "(kill)" beside the first job; it is a form with a token."""
    jobs = f"{spark.sparkContext.uiWebUrl}/jobs/"
    page = urllib.request.urlopen(jobs).read().decode()
    form = re.search(r'/jobs/job/kill/".*?name="id" value="(\d+)".*?name="csrfToken" value="(\w+)"', page, re.DOTALL)
    assert form is not None, "no link to kill a job"
    data = urllib.parse.urlencode({"id": form[1], "csrfToken": form[2]}).encode()
    urllib.request.urlopen(f"{jobs}job/kill/", data=data).close()


def by_stopping_spark() -> Outcome:
    with session("local[2]") as spark:
        return cancelled(spark, spark.stop, again=False)


SETTINGS = {
    "cancelJobGroup": of_a_group,
    "cancelAllJobs": lambda: on_local(lambda spark: spark.sparkContext.cancelAllJobs()),
    "the kill link of the Spark UI": lambda: on_local(
        through_the_ui, {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    ),
    "spark.stop()": by_stopping_spark,
}
