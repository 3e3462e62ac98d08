"""All settings of Spark that users have, by name: each runs the same search."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import socket
import subprocess
import sys
import sysconfig
import tarfile
import threading
import time
import urllib.parse
import urllib.request
import venv
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from benchmarks.object_store import URL, object_store
from maggy_like import ConnectServer, Result, SparkEngine, StandaloneCluster, load_run
from optimizers import AttemptEnded, AttemptStarted, Event
from platforms.networks import client, machine, secluded, tunnel
from platforms.searching import (
    TRIALS,
    Outcome,
    left,
    listening,
    lost,
    make_train,
    search,
    session,
    standalone,
    twice,
    wrong,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FAIR = '<allocations><pool name="searches"><schedulingMode>FAIR</schedulingMode></pool></allocations>'


def without_spark() -> Outcome:
    return twice(engine="local", workers=2)


def on(master: str, conf: Mapping[str, str] | None = None) -> Outcome:
    with session(master, conf) as spark:
        return twice(spark)


def on_cluster(conf: Mapping[str, str] | None = None, *, cores: int = 1, gpus: int = 0) -> Outcome:
    with standalone(conf, cores=cores, gpus=gpus) as spark:
        return twice(spark)


def encrypted() -> Outcome:
    """The Master and the Workers must know the secret, too."""
    secret = os.urandom(16).hex()
    daemons = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret,
        "spark.network.crypto.enabled": "true",
    }
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = " ".join(f"-D{key}={value}" for key, value in daemons.items())
    return on_cluster(daemons | {"spark.io.encryption.enabled": "true"})


def in_a_pool() -> Outcome:
    with open("fair.xml", "w") as file:
        file.write(FAIR)
    conf = {"spark.scheduler.mode": "FAIR", "spark.scheduler.allocation.file": os.path.abspath("fair.xml")}
    with session("local[2]", conf) as spark:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "searches")
        return twice(spark)


def busy() -> Outcome:
    """Half of the slots are taken by a job of the same user, and there is cached data."""
    with session("local[4]") as spark:
        cached = spark.range(100_000).cache()
        rows = cached.count()
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                assert cached.selectExpr("sum(id)").count() == 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            outcome = twice(spark, workers=2)
        finally:
            over.set()
            thread.join()
        if cached.count() != rows or not cached.is_cached:
            outcome.wrong.append("the cached data is gone")
        return outcome


def with_groups() -> Outcome:
    with session("local[2]") as spark:
        spark.sparkContext.setJobGroup("mine", "what I do today")
        spark.sparkContext.addJobTag("my-tag")
        outcome = twice(spark)
        kept = spark.sparkContext.getLocalProperty("spark.jobGroup.id"), set(spark.sparkContext.getJobTags())
        if kept != ("mine", {"my-tag"}):
            outcome.wrong.append(f"the group and the tags are now {kept}")
        return outcome


def no_barrier() -> Outcome:
    with standalone() as spark:
        return twice(spark, engine=SparkEngine(spark, barrier=False))


# -- cancels ---------------------------------------------------------------------------------------------


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
    outcome.wrong += not_cancelled(found)
    if again:
        afterwards = search("afterwards")
        outcome.wrong += [f"the search after it: {what}" for what in wrong(afterwards)]
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


# -- workers that come and go ----------------------------------------------------------------------------


SMALL = {"spark.executor.memory": "1g", "spark.executor.cores": "1"}


def allocated() -> Outcome:
    with (
        StandaloneCluster(2, memory="1g", dynamic=True) as machines,
        session(machines.master_url, machines.conf) as spark,
    ):
        return twice(spark, max_workers=2)


def with_a_shuffle_service() -> Outcome:
    """The service of a Worker has a port that its applications must know, so two Workers of one machine cannot."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(port)}
    os.environ["SPARK_DAEMON_JAVA_OPTS"] = " ".join(f"-D{key}={value}" for key, value in service.items())
    with (
        StandaloneCluster(1, cores=2, memory="2g") as machines,
        session(
            machines.master_url, machines.conf | service | SMALL | {"spark.dynamicAllocation.enabled": "true"}
        ) as spark,
    ):
        return twice(spark, max_workers=2)


def disturbed(spark: SparkSession, act: Callable[[], object], *, count: Callable[[Result], int] = lost) -> Outcome:
    """A search in which something happens to its cluster; its later trials wait until a second worker runs one."""
    gate = Path("gate").resolve()
    outcome, ports, midway, workers = Outcome(), listening(), Midway(act), set()

    def on_event(event: Event) -> None:
        midway(event)
        if isinstance(event, AttemptStarted):
            workers.add(event.worker)
            if len(workers) > 1:
                gate.touch()

    found = search("runs", train=make_train(0.5, gate), max_workers=2, callbacks=[on_event])
    midway.join()
    outcome.lost = count(found)
    outcome.best = found.best_value or outcome.best
    outcome.wrong += wrong(found)
    if not gate.exists():
        outcome.wrong.append("no second worker ran a trial")
    outcome.leftovers += left(spark, ports)
    return outcome


def joined_late() -> Outcome:
    with (
        StandaloneCluster(1, memory="1g", dynamic=True) as machines,
        session(machines.master_url, machines.conf) as spark,
    ):
        return disturbed(spark, machines.add_worker)


def decommissioned() -> Outcome:
    """A Worker that is told to leave, as a node of a cloud that is taken back, leaves with its executors."""
    with (
        StandaloneCluster(2, memory="1g", dynamic=True) as machines,
        session(machines.master_url, machines.conf) as spark,
    ):
        return disturbed(spark, lambda: machines.decommission_worker(0))


# -- Spark Connect ---------------------------------------------------------------------------------------


def served() -> Outcome:
    with ConnectServer("local[2]") as server, session(server.url) as spark:
        return twice(spark)


def from_another_machine() -> Outcome:
    """The client has an address of its own, at which workers call it back."""
    with machine() as afar, ConnectServer("local[2]", host=afar.here) as server:
        return client(afar, server.url)


def in_the_cluster() -> Outcome:
    """No worker can reach the client: the driver is a task of the application."""
    with ConnectServer("local[3]") as server, secluded() as afar, tunnel(afar, server.port) as port:
        url = Path("runs").resolve().as_uri()
        return client(afar, f"sc://127.0.0.1:{port}", directory=url, workers=2, driver="cluster")


def interrupted() -> Outcome:
    with ConnectServer("local[2]") as server, session(server.url) as spark:
        return cancelled(spark, spark.interruptAll)


# -- addresses -------------------------------------------------------------------------------------------


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


# -- code that is sent along -----------------------------------------------------------------------------


MODULE = "mgplat_shipped"
CLUSTER = "local-cluster[2,1,1024]"


def archive() -> Path:
    """A zip file with a module that is nowhere else; its ``train`` is the training."""
    source = f"""
from __future__ import annotations

import time

TRIALS = {TRIALS}

{inspect.getsource(make_train)}

_train = make_train()


def train(rate, decay, reporter):
    _train(rate, decay, reporter)
"""
    path = Path("shipped.zip").resolve()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{MODULE}.py", source)
    return path


def added() -> Outcome:
    with session(CLUSTER) as spark:
        spark.sparkContext.addPyFile(str(archive()))
        return twice(spark, train=importlib.import_module(MODULE).train)


def packed_environment() -> Path:
    """A small environment, packed: it finds its packages in this one's directory, as this machine has them already."""
    venv.create("env", with_pip=False)
    [site] = Path("env").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    with tarfile.open("env.tar.gz", "w:gz") as file:
        file.add("env", ".")
    return Path("env.tar.gz").resolve()


def unpacked() -> Outcome:
    os.environ |= {"PYSPARK_PYTHON": "./env/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    with session(CLUSTER, {"spark.archives": f"{packed_environment()}#env"}) as spark:
        return twice(spark)


def submitted() -> Outcome:
    """An application of ``spark-submit --py-files``."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path("submitted.json").resolve()
    Path("application.py").write_text(
        "import sys\nfrom pathlib import Path\nfrom platforms.settings import application\n"
        "application().write(Path(sys.argv[1]))\n"
    )
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [f"{home}/bin/spark-submit", "--master", CLUSTER, "--py-files", str(archive()), "application.py"]
    done = subprocess.run([*command, str(file)], env=environment)
    return Outcome.read(file) if file.exists() else Outcome([f"spark-submit ended with status {done.returncode}"])


def application() -> Outcome:
    """What the application does."""
    with session(None) as spark:
        return twice(spark, train=importlib.import_module(MODULE).train)


# -- object stores ---------------------------------------------------------------------------------------


def in_a_store() -> Outcome:
    with object_store() as environment:
        os.environ |= environment
        return _search_twice()


def _search_twice() -> Outcome:
    with session("local[2]") as spark:
        outcome = twice(spark, URL)
        found = search(URL, name="again")
        outcome.wrong += [f"read from the store: {what}" for what in wrong(load_run(f"{URL}/again"))]
        if found.load_best()["step"] != found.best_step:
            outcome.wrong.append("the best state is not the one of the best step")
        return outcome


SETTINGS: dict[str, Callable[[], Outcome]] = {
    "local processes": without_spark,
    "local[2]": lambda: on("local[2]"),
    "local-cluster": lambda: on("local-cluster[2,1,1024]"),
    "standalone": on_cluster,
    "authentication, encryption": encrypted,
    "no worker reuse": lambda: on("local[2]", {"spark.python.worker.reuse": "false"}),
    "task.cpus=2": lambda: on_cluster({"spark.task.cpus": "2"}, cores=2),
    "FAIR pool": in_a_pool,
    "speculation": lambda: on_cluster({"spark.speculation": "true", "spark.speculation.interval": "100ms"}),
    "busy session, cached data": busy,
    "own job group and tags": with_groups,
    "GPUs, one a task": lambda: on_cluster(gpus=1),
    "GPUs, task-only profile": lambda: on_cluster({"spark.task.resource.gpu.amount": "0"}, gpus=1),
    "barrier=False": no_barrier,
    "cancelJobGroup": of_a_group,
    "cancelAllJobs": lambda: on_local(lambda spark: spark.sparkContext.cancelAllJobs()),
    "the kill link of the Spark UI": lambda: on_local(
        through_the_ui, {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    ),
    "spark.stop()": by_stopping_spark,
    "dynamic allocation": allocated,
    "dynamic, external shuffle service": with_a_shuffle_service,
    "dynamic, a Worker comes late": joined_late,
    "dynamic, a Worker decommissioned": decommissioned,
    "Spark Connect": served,
    "Connect from another machine": from_another_machine,
    'Connect, driver="cluster"': in_the_cluster,
    "Connect, interruptAll": interrupted,
    "host is not bind": other_name,
    "a port of a range": in_a_range,
    "IPv6": on_ipv6,
    "reserve=1": with_a_reserve,
    "addPyFile": added,
    "--py-files": submitted,
    "spark.archives": unpacked,
    "directory=URL": in_a_store,
}

QUICK = ("local processes", "local[2]", "standalone", "Kubernetes")
"""Settings that ``make test`` runs; other tests cover cancels and executors that come and go."""
