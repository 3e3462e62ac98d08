"""The settings of users on Kubernetes, by name: each runs the same search on a stand-in for the cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.object_store import URL, object_store
from maggy_like import SparkEngine, list_runs, load_run
from maggy_like.errors import EngineError
from optimizers import AttemptEnded, AttemptStarted, Event
from platforms.kubernetes import GPU, IMAGE, NAMESPACE, SPARK, Kubernetes
from platforms.searching import Outcome, left, listening, make_train, search, session, twice, wrong
from platforms.settings import ENDED, Midway, disturbed, packed_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.executor.instances": "0",
    "spark.decommission.enabled": "true",
}
"""Executors that come and go; Kubernetes has no external shuffle service."""

PODS = Path("pods")


@contextlib.contextmanager
def outside(cluster: Kubernetes, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session whose client is no pod; it leaves none."""
    with session(cluster.master_url, cluster.conf | dict(conf or {})) as spark:
        yield spark
    cluster.await_(lambda: not cluster.pods)


def from_outside() -> Outcome:
    with Kubernetes(PODS, delay=1.0) as cluster, outside(cluster) as spark:
        return twice(spark)


# -- drivers in the cluster ------------------------------------------------------------------------------


def application() -> Outcome:
    """What the pod of a driver does."""
    with session(None) as spark:
        return twice(spark)


def resumable() -> Outcome:
    """What the pod of a driver does that may be started again."""
    with session(None):
        exists = any(run.name == "august" for run in list_runs(URL))
        found = search(URL, name="august", resume=exists, train=make_train(0.3))
        return Outcome([*wrong(found), *([] if exists else ["it was not resumed"])], best=found.best_value or 0.0)


def main_file(function: Callable[[], Outcome]) -> tuple[str, str]:
    """An application of this function, and the file to which it writes its outcome."""
    file, outcome = Path("main.py").resolve(), Path("outcome-of-pod.json").resolve()
    file.write_text(
        "import sys\nfrom pathlib import Path\n"
        f"from platforms.kubernetes_settings import {function.__name__}\n"
        f"{function.__name__}().write(Path(sys.argv[1]))\n"
    )
    return str(file), str(outcome)


def in_a_pod() -> Outcome:
    """As a notebook in the cluster: a pod of its own, and a headless service by which executors find it."""
    file, answer = main_file(application)
    with Kubernetes(PODS, has_names=True) as cluster:
        conf = cluster.conf | {
            "spark.master": cluster.master_url,
            "spark.kubernetes.driver.pod.name": "notebook",
            "spark.driver.host": f"notebook.{NAMESPACE}.svc",
            "spark.driver.bindAddress": "0.0.0.0",
        }
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        command = [f"{SPARK}/bin/spark-submit", *options, file, answer]
        about = {"name": "notebook", "labels": {"app": "notebook"}}
        container = {"name": "notebook", "image": IMAGE, "command": command}
        cluster.create("services", {"metadata": about, "spec": {"clusterIP": "None", "selector": about["labels"]}})
        cluster.create("pods", {"metadata": about, "spec": {"containers": [container]}})
        cluster.await_(lambda: cluster.pods["notebook"]["status"]["phase"] in ("Succeeded", "Failed"))
        return of_pod(cluster, "notebook", answer)


def of_pod(cluster: Kubernetes, pod: str, answer: str) -> Outcome:
    """What a driver's pod came to; no pod of an executor may be left."""
    print(cluster.log(pod))
    outcome = Outcome.read(Path(answer)) if Path(answer).exists() else Outcome([f"there is no outcome of pod {pod}"])
    outcome.leftovers += [f"pod {name}" for name in cluster.pods if name != pod]
    return outcome


def submit(cluster: Kubernetes, file: str, *arguments: str, conf: Mapping[str, str] | None = None) -> list[str]:
    """The command that submits an application, which waits until its pod has ended."""
    settings = cluster.conf | {
        "spark.driver.memory": "600m",
        "spark.kubernetes.driver.master": f"http://127.0.0.1:{cluster.port}",
        "spark.kubernetes.submission.connectionTimeout": "30000",
        **(conf or {}),
    }
    for key in ("spark.driver.host", "spark.driver.bindAddress"):
        del settings[key]  # Spark makes a service for the driver
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return [
        *(f"{SPARK}/bin/spark-submit", "--master", cluster.master_url, "--deploy-mode", "cluster"),
        *("--name", "search", *options, f"local://{file}", *arguments),
    ]


def driver_pods(cluster: Kubernetes) -> list[str]:
    return [name for name, pod in cluster.pods.items() if pod["metadata"]["labels"]["spark-role"] == "driver"]


def cluster_mode() -> Outcome:
    file, answer = main_file(application)
    with Kubernetes(PODS, has_names=True) as cluster:
        done = subprocess.run(submit(cluster, file, answer))
        [pod] = driver_pods(cluster)
        outcome = of_pod(cluster, pod, answer)
        if done.returncode:
            outcome.wrong.append(f"spark-submit ended with status {done.returncode}")
        if "the driver runs in the cluster (a Kubernetes pod)" not in cluster.log(pod):
            outcome.wrong.append("nothing says that the run's directory is gone with the pod")
        return outcome


def driver_killed() -> Outcome:
    """The pod of the driver is killed midway; another one resumes its run, which is in an object store."""
    file, answer = main_file(resumable)
    with object_store() as environment, Kubernetes(PODS, has_names=True) as cluster:
        os.environ |= environment
        command = submit(cluster, file, answer)
        with subprocess.Popen(command) as first:
            while first.poll() is None and not has_ended_trials():
                time.sleep(0.2)
            for pod in driver_pods(cluster):
                cluster.kill(pod)
        [dead] = driver_pods(cluster)
        print(cluster.log(dead))
        cluster.await_(lambda: not cluster.executors())
        subprocess.run(command)
        [pod] = set(driver_pods(cluster)) - {dead}
        cluster.evict(dead)  # and with it what is left of its executors' pods
        outcome = of_pod(cluster, pod, answer)
        found = load_run(f"{URL}/august")
        outcome.wrong += [f"read from the store: {what}" for what in wrong(found)]
        return outcome


def has_ended_trials() -> bool:
    """Whether the run in the object store has come far enough."""
    with contextlib.suppress(Exception):  # it has not begun
        found = load_run(f"{URL}/august")
        return sum(trial.state == "completed" for trial in found.trials) >= ENDED
    return False


def in_an_executor() -> Outcome:
    """The search's driver is a task of the application."""
    with Kubernetes(PODS) as cluster, outside(cluster, {"spark.executor.instances": "3"}) as spark:
        return twice(spark, directory=Path("runs").resolve().as_uri(), workers=2, driver="cluster")


def from_archives() -> Outcome:
    os.environ |= {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    archive = {"spark.archives": f"{packed_environment()}#env"}
    with Kubernetes(PODS) as cluster, outside(cluster, archive) as spark:
        return twice(spark)


# -- pods and nodes that come and go ---------------------------------------------------------------------


def allocated() -> Outcome:
    with Kubernetes(PODS) as cluster, outside(cluster, DYNAMIC) as spark:
        return twice(spark, max_workers=2)


def evicted() -> Outcome:
    """A pod is taken back, and its executor leaves in order."""
    with Kubernetes(PODS) as cluster, outside(cluster, DYNAMIC) as spark:
        return disturbed(spark, lambda: cluster.evict(cluster.executors()[0]))


def spot() -> Outcome:
    """Nodes vanish without notice, one after another, each replaced later; that counts against no trial."""
    with Kubernetes(PODS, [{"cpu": 1}, {"cpu": 1}]) as cluster, outside(cluster, DYNAMIC) as spark:

        def lose_them() -> None:
            for number in range(3):
                name = f"node-{number}"
                cluster.await_(lambda: len(cluster.executors()) == 2)
                cluster.lose_node(name)
                time.sleep(1.0)
                cluster.add_node(f"node-{number + 2}", {"cpu": 1})

        return disturbed(spark, lose_them, count=lambda found: sum(trial.losses for trial in found.trials))


def killed() -> Outcome:
    """A pod of a barrier stage is killed: its stage starts again once there is another pod."""
    with Kubernetes(PODS) as cluster, outside(cluster) as spark:
        outcome, ports, pods = Outcome(), listening(), len(cluster.created)
        midway = Midway(lambda: cluster.kill(cluster.executors()[0]))
        found = search("runs", pace=0.3, callbacks=[midway, gaps := Gaps()])
        midway.join()
        outcome.wrong += wrong(found)
        print(f"seconds until a lost trial started again: {gaps}")
        if len(cluster.created) == pods:
            outcome.wrong.append("there was no other pod")
        outcome.best = found.best_value or outcome.best
        outcome.leftovers += left(spark, ports)
        return outcome


def without_api() -> Outcome:
    """The API is away for twenty seconds, and a pod is killed meanwhile."""
    with Kubernetes(PODS) as cluster, outside(cluster) as spark:
        outcome, ports = Outcome(), listening()

        def strike() -> None:
            threading.Timer(5.0, lambda: cluster.kill(cluster.executors()[0])).start()
            cluster.go_away(20.0)

        midway = Midway(strike)
        found = search("runs", pace=0.5, callbacks=[midway, gaps := Gaps()])
        midway.join()
        outcome.wrong += wrong(found)
        print(f"seconds until a lost trial started again: {gaps}")
        outcome.best = found.best_value or outcome.best
        outcome.leftovers += left(spark, ports)
        return outcome


class Gaps:
    """A callback that measures how long lost trials wait."""

    def __init__(self) -> None:
        self._lost: dict[int, float] = {}
        self._seconds: list[float] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.failure is not None:
            self._lost[event.trial] = event.time
        elif isinstance(event, AttemptStarted) and event.trial in self._lost:
            self._seconds.append(event.time - self._lost.pop(event.trial))

    def __str__(self) -> str:
        return ", ".join(f"{seconds:.1f}" for seconds in self._seconds) or "none was lost"


# -- GPUs ------------------------------------------------------------------------------------------------


def gpu_script() -> str:
    """A script that prints a GPU for each executor."""
    script = Path("gpus.sh").resolve()
    script.write_text('#!/bin/sh\necho "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"${SPARK_EXECUTOR_ID}\\"]}"\n')
    script.chmod(0o700)
    return str(script)


def gpus_of_the_search() -> Outcome:
    """Joins run on executors without GPUs, and the search gets executors with one each."""
    nodes = [{"cpu": 2, GPU: 0}, {"cpu": 1, GPU: 1}, {"cpu": 1, GPU: 1}]
    with Kubernetes(PODS, nodes) as cluster, outside(cluster, DYNAMIC) as spark:
        spark.range(4, numPartitions=2).groupBy().sum().collect()
        resources = {"gpu": 1, "cpu": 1, "memory": "1200m", "discovery_script": gpu_script()}
        outcome = twice(spark, engine=SparkEngine(spark, resources=resources), max_workers=2)
        profiles: dict[bool, list[dict[str, dict[str, str]]]] = {False: [], True: []}
        for pod in cluster.created:
            is_own = pod["metadata"]["labels"]["spark-exec-resourceprofile-id"] != "0"
            profiles[is_own].append(pod["spec"]["containers"][0]["resources"])
        print("pods of joins:", profiles[False], "pods of the search:", profiles[True])
        outcome.wrong += [f"a join's pod had {each}" for each in profiles[False] if GPU in str(each)]
        outcome.wrong += [f"a worker's pod had {each}" for each in profiles[True] if each["limits"].get(GPU) != "1"]
        if not all(profiles.values()):
            outcome.wrong.append(f"there were only pods of {profiles}")
        return outcome


# -- pods that do not start ------------------------------------------------------------------------------


def refused(cluster: Kubernetes, told: str, conf: Mapping[str, str] | None = None) -> Outcome:
    """Three workers are wanted and cannot all come; the error says why, and a search with what is there completes."""
    with outside(cluster, {"spark.executor.instances": "3", **(conf or {})}) as spark:
        cluster.await_(lambda: len(cluster.executors()) == 2 or conf)
        try:
            search("runs", workers=3)
        except EngineError as error:
            print("told:", error)
            wrong = [] if told in str(error) else [f"the error was: {error}"]
        else:
            wrong = ["three workers were found"]
        return Outcome(wrong) if conf else dataclasses.replace(twice(spark), wrong=wrong)


def full() -> Outcome:
    with Kubernetes(PODS, [{"cpu": 1}, {"cpu": 1}]) as cluster:
        return refused(cluster, "Kubernetes has not scheduled 1 pod: 0/2 nodes are available: 2 Insufficient cpu")


def over_quota() -> Outcome:
    with Kubernetes(PODS, max_pods=2) as cluster:
        return refused(cluster, "Kubernetes has 2 of 3 pods and may refuse others")


def without_image() -> Outcome:
    with Kubernetes(PODS) as cluster:
        missing = {"spark.kubernetes.container.image": "missing"}
        return refused(cluster, "Kubernetes has not started 3 pods: ImagePullBackOff", missing)


def without_gpu() -> Outcome:
    """No node has a GPU at first; the search says so while it waits."""
    told = "Kubernetes has not scheduled 2 pods: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
    seen: list[str] = []
    with Kubernetes(PODS, [{GPU: 0}]) as cluster, outside(cluster, DYNAMIC) as spark:

        def add_when_told() -> None:
            until = time.monotonic() + 60.0
            while not seen and time.monotonic() < until:
                seen.extend(line for line in Path("output.txt").read_text().splitlines() if told in line)
                time.sleep(0.1)
            cluster.add_node("node-1", {GPU: 2})

        adding = threading.Thread(target=add_when_told)
        adding.start()
        resources = {"gpu": 1, "memory": "1200m", "discovery_script": gpu_script()}
        outcome = twice(spark, engine=SparkEngine(spark, resources=resources), workers=2)
        adding.join()
        outcome.wrong += [] if seen else ["nothing said why the pods wait"]
        return outcome


SETTINGS_ON_KUBERNETES: dict[str, Callable[[], Outcome]] = {
    "Kubernetes": from_outside,
    "Kubernetes, client in a pod": in_a_pod,
    "Kubernetes, cluster mode": cluster_mode,
    "Kubernetes, driver's pod killed": driver_killed,
    'Kubernetes, driver="cluster"': in_an_executor,
    "Kubernetes, spark.archives": from_archives,
    "Kubernetes, dynamic allocation": allocated,
    "Kubernetes, a pod taken back": evicted,
    "Kubernetes, spot nodes vanish": spot,
    "Kubernetes, a pod killed": killed,
    "Kubernetes, API away": without_api,
    "Kubernetes, GPUs of the search": gpus_of_the_search,
    "Kubernetes, no GPU at first": without_gpu,
    "Kubernetes, no node for a pod": full,
    "Kubernetes, quota": over_quota,
    "Kubernetes, no image": without_image,
}
