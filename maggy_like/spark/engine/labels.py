"""What a cluster's users see of our jobs: a description, and a group and a tag by which they can cancel them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from maggy_like.protocol.task import WorkerTask
from maggy_like.spark.kinds import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GROUP = "spark.jobGroup.id"
_CALL_SITE = "callSite.short", "callSite.long"
"""What Spark's UI names a job and its stages by, and what it shows under "+details"."""


def job_group(name: str) -> str:
    """The job group, and the job tag, of a run's jobs."""
    return "maggy_like-" + re.sub(r"[^\w.-]", "_", name)  # a tag may hold no comma


def describe(task: WorkerTask, workers: int, incarnation: int) -> str:
    """A job in words."""
    about = f"{task.about}, {workers} worker{'s' * (workers != 1)}, incarnation {incarnation}"
    return f"maggy_like {task.name}: {about}"


def label_jobs(session: SparkSession, task: WorkerTask, workers: int, incarnation: int, own: str) -> None:
    """Label the jobs that this thread is about to start; those of the caller's thread stay as they are.

    A group that the caller has set stays the job's: who cancels it, as a notebook does for its cell, means the search
    too. A classic session's own tags reach no barrier job, so those of its context are used.

    Args:
        own: A tag that no other job has.
    """
    group = job_group(task.name)
    if not is_classic(session):
        session.addTag(own)
        session.addTag(group)
        return
    context = session.sparkContext
    context.addJobTag(own)
    context.addJobTag(group)
    if context.getLocalProperty(_GROUP) is None:
        context.setLocalProperty(_GROUP, group)
    description = describe(task, workers, incarnation)
    context.setJobDescription(description)
    for key, value in zip(_CALL_SITE, (f"maggy_like {task.name}", description), strict=True):
        context.setLocalProperty(key, value)


def cancel_jobs(session: SparkSession, own: str) -> None:
    """Cancel the jobs of a classic session that have a tag; Spark's UI then says that it was us."""
    session.sparkContext._jsc.sc().cancelJobsWithTag(own, f"by maggy_like, whose search needs it no more ({own})")
