"""Why Kubernetes has not started the pods of a session's executors."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from maggy_like.spark.connection import is_classic, setting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_PENDING = 100
"""Maximum characters of Kubernetes' reason in a message."""


def pending_pods(session: SparkSession) -> str:
    """Return which pods Kubernetes has not started for a session, and why; empty if it has, or on another cluster.

    Spark's client of Kubernetes is asked, which may list the session's pods. A failure hides only the reason.
    """
    with contextlib.suppress(Exception):
        if is_classic(session) and str(session.sparkContext.master).startswith("k8s://"):
            return _pending_of(_executor_pods(session), int(setting(session, "spark.executor.instances", "0")))
    return ""


def _executor_pods(session: SparkSession) -> list[dict[str, Any]]:
    context: Any = session.sparkContext
    backend = context._jsc.sc().schedulerBackend()
    field = backend.getClass().getDeclaredField("kubernetesClient")
    field.setAccessible(True)
    namespace = setting(session, "spark.kubernetes.namespace", "default")
    pods = field.get(backend).pods().inNamespace(namespace)
    found = pods.withLabel("spark-app-selector", context.applicationId).withLabel("spark-role", "executor").list()
    read = context._jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson(found)
    return list(msgspec.json.decode(read.encode())["items"])


def _pending_of(pods: Iterable[Mapping[str, Any]], wanted: int) -> str:
    """Describe the pods of executors that have not started.

    ``wanted`` is the fixed number of executors, of which Kubernetes may have refused some; 0 if they come and go.

    Example:
        >>> refused = {"type": "PodScheduled", "status": "False", "message": "full"}
        >>> _pending_of([{"status": {"phase": "Pending", "conditions": [refused]}}], 0)
        'Kubernetes has not scheduled 1 pod: full'
    """
    reasons: dict[tuple[str, str], int] = defaultdict(int)
    count = 0
    for pod in pods:
        status = pod.get("status", {})
        count += status.get("phase") in ("Pending", "Running")
        if status.get("phase") != "Pending":
            continue
        refused = [
            it for it in status.get("conditions", ()) if it["type"] == "PodScheduled" and it["status"] == "False"
        ]
        waiting = [it["state"]["waiting"] for it in status.get("containerStatuses", ()) if "waiting" in it["state"]]
        if refused:
            reasons["scheduled", refused[0].get("message", "")] += 1
        elif waiting:
            reasons["started", ": ".join(filter(None, map(waiting[0].get, ("reason", "message"))))] += 1
        else:
            reasons["started", ""] += 1
    said = [
        f"Kubernetes has not {verb} {number} pod{'s' * (number > 1)}"
        + f": {why[:MOST_PENDING].rstrip('.')}" * bool(why)
        for (verb, why), number in reasons.items()
    ]
    if count < wanted:
        said.append(
            f"Kubernetes has {count} of {wanted} pods and may refuse others (kubectl describe quota shows a limit)"
        )
    return "; ".join(said)
