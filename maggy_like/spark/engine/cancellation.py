"""Distinguishes a Spark job that a user cancelled from one that failed, by Spark's message about its end."""

from __future__ import annotations

import re

from maggy_like.spark.kinds import SESSION_STOPPED

# Spark 4: "[SPARK_JOB_CANCELLED] Job 3 cancelled part of cancelled job group x SQLSTATE: XXKDA"; before, and where the
# session is stopped, without the condition. A failure reads "Job aborted due to stage failure: ...".
_CANCELLED = re.compile(
    r"(?:^|: |\) |\] )(?:\[SPARK_JOB_CANCELLED\] )?Job (\d+) cancell?ed\b[ :]*(.*?)\s*(?:SQLSTATE: \w+)?\s*$"
)
_INTERRUPTED = re.compile(r"\[OPERATION_CANCELL?ED\]")
# Connect's server lets go of a session that its client has stopped; the client may have closed its channel before, also
# while the job's answer was on its way: gRPC then says "Channel closed!" or "Stream removed (Channel closed!)".
_CLOSED = re.compile(r"\[INVALID_HANDLE\.SESSION_CLOSED\]|^Cannot invoke RPC|^details = \"[^\"]*Channel closed!")
# A standalone Master whose user killed the application. "FAILED" instead: its executors failed too often.
_KILLED = re.compile(r"Master removed our application: KILLED")

INTERRUPTED = "its Spark Connect operation was interrupted"

_REASONS = (
    (re.compile(r"^(?:as )?part of cancelled job group (.+)$"), "job {job} was cancelled with its job group {what!r}"),
    (re.compile(r"^(?:as )?part of cancelled job tags? (.+)$"), "job {job} was cancelled with its job tag {what!r}"),
    (re.compile(r"^as part of cancellation of all jobs()$"), "all jobs of the Spark application were cancelled"),
    (re.compile(r"^because SparkContext was shut down()$"), SESSION_STOPPED),
    (re.compile(r"^()$"), "job {job} was cancelled"),
    (re.compile(r"^(?:because )?(.+)$"), "job {job} was cancelled: {what}"),
)


def cancelled_by(text: str) -> str:
    """Say who cancelled a job; empty where it was not cancelled.

    Args:
        text: The error of the job, as pyspark gives it.
    """
    for line in _messages(text):
        if (match := _CANCELLED.search(line)) is not None:
            return _in_words(match[1], match[2])
        if _INTERRUPTED.search(line):
            return INTERRUPTED
        if _CLOSED.search(line):
            return SESSION_STOPPED
        if _KILLED.search(line):
            return "the Spark application was killed"
    return ""


def _messages(text: str) -> list[str]:
    """The first lines of an error, which are Spark's own: what follows may be of a function, and say anything."""
    head = re.split(r"\n\s*at |\n\s*\n|Traceback \(most recent call last\)", text, maxsplit=1)[0]
    return [line.strip() for line in head.splitlines()[:3]]


def _in_words(job: str, reason: str) -> str:
    for pattern, words in _REASONS:
        if (match := pattern.search(reason)) is not None:
            return words.format(job=job, what=match[1])
    raise AssertionError(reason)
