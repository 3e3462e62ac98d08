"""A Kubernetes cluster on loopback: the part of its API that Spark asks for, and pods that are processes.

Spark's backend, its client (fabric8) and its executors are real. A pod runs what the entrypoint of Spark's images would
run, from the pip package. Kubernetes' own part is a stand-in: it has no authentication, no images, no networks, only
configmaps and empty directories as volumes, and a scheduler that only counts resources.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import pyspark

Item = dict[str, Any]

SPARK = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)

IMAGE = "maggy-like"
"""The only image that can be pulled: this machine."""

NAMESPACE = "default"

GPU = "nvidia.com/gpu"

_LABEL = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?")
_UNITS = {"": 1.0, "m": 1e-3, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"


class Refused(Exception):
    """An answer of the API that is an error."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self.status |= {"reason": reason, "message": message}
        self.code = code


class Key(NamedTuple):
    """Where an item is."""

    kind: str  # as in the URL: ``pods``
    namespace: str
    name: str


class Kubernetes:
    """A cluster; its pods end with the ``with`` block.

    Args:
        directory: The pods' files: ``POD/log`` is what a pod has written.
        nodes: What each node has of the resources that are counted, such as ``{"cpu": 1, "nvidia.com/gpu": 1}``; a
            node has enough of any other. A pod that fits on no node waits.
        delay: Seconds until a new pod is looked at by the scheduler.
        max_pods: A quota.
        has_names: Whether pods resolve the names of services. It needs ``unshare``.

    Attributes:
        pods: The pods that there are, by name.
        created: All pods that were ever created, as they were sent.
    """

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[Mapping[str, float]] = ({},),
        *,
        delay: float = 0.0,
        max_pods: int | None = None,
        has_names: bool = False,
    ) -> None:
        self._directory, self._delay, self._max_pods, self._has_names = directory.resolve(), delay, max_pods, has_names
        self._directory.mkdir(parents=True, exist_ok=True)
        self._nodes = {f"node-{number}": node for number, node in enumerate(nodes)}
        self._items: dict[Key, Item] = {}
        self._log: list[tuple[Key, str, Item]] = []  # what has changed; an item's version is its place in the log
        self._changed = threading.Condition(threading.RLock())
        self._processes: dict[Key, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self.created: list[Item] = []
        self._server = _Server(("127.0.0.1", 0), functools.partial(_Api, self))
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        self._serve()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._server.stop()
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
        for thread in self._threads:
            thread.join()

    @property
    def master_url(self) -> str:
        """The master for Spark."""
        return f"k8s://http://127.0.0.1:{self.port}"

    @property
    def conf(self) -> dict[str, str]:
        """What a session outside of the cluster is set to."""
        return {
            "spark.kubernetes.container.image": IMAGE,
            "spark.kubernetes.allocation.batch.delay": "500ms",
            "spark.kubernetes.executor.apiPollingInterval": "3s",
            "spark.executor.instances": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "600m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }

    @property
    def pods(self) -> dict[str, Item]:
        with self._changed:
            return {key.name: copy.deepcopy(item) for key, item in self._items.items() if key.kind == "pods"}

    def executors(self, phase: str = "Running") -> list[str]:
        """The names of the executors' pods in a phase, oldest first."""
        return [
            name
            for name, pod in self.pods.items()
            if pod["metadata"].get("labels", {}).get("spark-role") == "executor" and pod["status"]["phase"] == phase
        ]

    def log(self, pod: str) -> str:
        """What a pod has written."""
        return (self._directory / pod / "log").read_text(errors="replace")

    def await_(self, holds: Callable[[], object], seconds: float = 120.0) -> None:
        """Wait until something holds that changes with an item."""
        with self._changed:
            if not self._changed.wait_for(holds, seconds):
                raise TimeoutError(f"still waiting after {seconds:g} s; the pods: {self.pods}")

    # -- what happens to a cluster ---------------------------------------------------------------------------

    def create(self, kind: str, item: Item) -> str:
        """Create an item, as ``kubectl`` would."""
        created: str = self.post(kind, NAMESPACE, item)["metadata"]["name"]
        return created

    def kill(self, pod: str) -> None:
        """Kill a pod's process, as the kernel does that is short of memory."""
        _signal(self._processes[Key("pods", NAMESPACE, pod)], signal.SIGKILL)

    def evict(self, pod: str) -> None:
        """Take a pod back: its process gets the time to leave in order."""
        self.delete(Key("pods", NAMESPACE, pod))

    def lose_node(self, name: str) -> None:
        """Lose a node without notice, as a spot machine is lost; Kubernetes fails its pods, and removes them."""
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
        with self._changed:
            del self._nodes[name]
            for key in [key for key, item in self._items.items() if item.get("spec", {}).get("nodeName") == name]:
                # Nobody has seen how its containers ended.
                self._items[key]["status"] |= {"phase": "Failed", "conditions": [condition]}
                self._note(key, "MODIFIED")
                self._remove(key)
                _signal(self._processes[key], signal.SIGKILL)

    def add_node(self, name: str, node: Mapping[str, float]) -> None:
        """Add a node, on which pods that wait may start."""
        with self._changed:
            self._nodes[name] = node
            self._changed.notify_all()

    def go_away(self, seconds: float) -> None:
        """Break all connections to the API, and accept none for a time."""
        self._server.stop()
        time.sleep(seconds)
        self._server = _Server(("127.0.0.1", self.port), functools.partial(_Api, self))
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    # -- the API ---------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Item:
        with self._changed:
            if key not in self._items:
                raise Refused(404, "NotFound", f'{key.kind} "{key.name}" not found')
            return copy.deepcopy(self._items[key])

    def find(self, kind: str, namespace: str, query: Mapping[str, str]) -> Item:
        with self._changed:
            found = [item for key, item in self._items.items() if _is_wanted(key, item, kind, namespace, query)]
            name = {"pods": "PodList", "configmaps": "ConfigMapList", "services": "ServiceList"}.get(kind, "List")
            return {
                "kind": name,
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(len(self._log))},
                "items": copy.deepcopy(found),
            }

    def watch(self, kind: str, namespace: str, query: Mapping[str, str]) -> Iterator[Item | None]:
        """Yield what changes, and None now and then, so that the caller notices a broken connection."""
        with self._changed:
            since = int(query.get("resourceVersion") or 0)
            if not since:
                since = len(self._log)
                present = self.find(kind, namespace, query)["items"]
            else:
                present = []
        yield from ({"type": "ADDED", "object": item} for item in present)
        while not self._is_over:
            with self._changed:
                if len(self._log) == since:
                    self._changed.wait(1.0)
                news, since = self._log[since:], len(self._log)
            yield from (
                {"type": what, "object": item}
                for key, what, item in news
                if _is_wanted(key, item, kind, namespace, query)
            )
            yield None

    def post(self, kind: str, namespace: str, item: Item) -> Item:
        item = copy.deepcopy(item)
        about = item.setdefault("metadata", {})
        about.setdefault("name", about.get("generateName", "") + secrets.token_hex(3))
        about |= {"namespace": namespace, "uid": secrets.token_hex(8), "creationTimestamp": _now()}
        key = Key(kind, namespace, about["name"])
        with self._changed:
            if key in self._items:
                raise Refused(409, "AlreadyExists", f'{kind} "{key.name}" already exists')
            if kind == "pods":
                _check_pod(item)
                self._check_quota(key.name)
                self.created.append(copy.deepcopy(item))
                item["status"] = {"phase": "Pending", "conditions": []}
            self._items[key] = item
            self._note(key, "ADDED")
            if kind == "pods":
                self._threads.append(threading.Thread(target=self._live, args=(key,), name=key.name, daemon=True))
                self._threads[-1].start()
            return copy.deepcopy(item)

    def patch(self, key: Key, change: Any, *, applies: bool = False) -> Item:
        with self._changed:
            if applies and key not in self._items:
                return self.post(key.kind, key.namespace, change)
            self.get(key)
            if isinstance(change, list):
                for one in change:
                    _patch(self._items[key], one)
            else:
                _merge(self._items[key], change)
            self._note(key, "MODIFIED")
            return self.get(key)

    def delete(self, key: Key) -> Item:
        """Delete an item; a pod's process gets its grace period first."""
        item = self.get(key)
        with self._changed:
            process = self._processes.get(key)
            if process is None or process.poll() is not None:
                self._remove(key)
                return item
            if "deletionTimestamp" not in item["metadata"]:
                self._items[key]["metadata"]["deletionTimestamp"] = _now()
                self._note(key, "MODIFIED")
        # The only hook that Spark sets is its decom.sh, which sends the executor this signal and waits.
        has_hook = "preStop" in item["spec"]["containers"][0].get("lifecycle", {})
        _signal(process, signal.SIGPWR if has_hook else signal.SIGTERM)
        grace = item["spec"].get("terminationGracePeriodSeconds", 30)
        ending = threading.Timer(grace, _signal, (process, signal.SIGKILL))
        ending.daemon = True
        ending.start()
        return item

    def _check_quota(self, name: str) -> None:
        used = sum(key.kind == "pods" for key in self._items)
        if self._max_pods is not None and used >= self._max_pods:
            raise Refused(
                403,
                "Forbidden",
                f'pods "{name}" is forbidden: exceeded quota: small, requested: pods=1, used: pods={used}, '
                f"limited: pods={self._max_pods}",
            )

    def _remove(self, key: Key) -> None:
        """Remove an item, and all that belongs to it."""
        with self._changed:
            item = self._items.get(key)
            if item is None:
                return
            self._note(key, "DELETED")
            del self._items[key]
            uid = item["metadata"]["uid"]
            owned = [
                other
                for other, it in self._items.items()
                if any(owner["uid"] == uid for owner in it["metadata"].get("ownerReferences", ()))
            ]
        for other in owned:
            with contextlib.suppress(Refused):
                self.delete(other)

    def _note(self, key: Key, what: str) -> None:
        item = self._items[key]
        item["metadata"]["resourceVersion"] = str(len(self._log) + 1)
        self._log.append((key, what, copy.deepcopy(item)))
        if self._has_names and key.kind in ("pods", "services"):
            self._write_names()
        self._changed.notify_all()

    # -- the pods --------------------------------------------------------------------------------------------

    def _live(self, key: Key) -> None:
        """The life of a pod: it waits for a node, starts, and ends."""
        time.sleep(self._delay)
        if not self._await_node(key):
            return
        with self._changed:
            self._changed.wait_for(lambda: self._has_volumes(key) or self._is_over)
            if key not in self._items or self._is_over:
                return
            pod = self._items[key]
            container = pod["spec"]["containers"][0]
            if container["image"] != IMAGE:
                waits = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
                self._set_status(key, "Pending", {"waiting": waits})
                return
            process = self._processes[key] = self._start(key, pod)
            self._set_status(key, "Running", {"running": {"startedAt": _now()}})
        code = process.wait()
        _signal(process, signal.SIGKILL)  # a container takes all its processes with it
        with self._changed:
            if key not in self._items or self._is_over:
                return
            if "deletionTimestamp" in self._items[key]["metadata"]:
                self._remove(key)
                return
            code = code if code >= 0 else 128 - code
            reason = {0: "Completed", 137: "OOMKilled"}.get(code, "Error")
            ended = {"exitCode": code, "reason": reason, "startedAt": _now(), "finishedAt": _now()}
            self._set_status(key, "Failed" if code else "Succeeded", {"terminated": ended})

    def _await_node(self, key: Key) -> bool:
        """Wait until a node has room; False if the pod was deleted meanwhile."""
        with self._changed:
            while key in self._items and not self._is_over:
                needs = _requests(self._items[key])
                lacks: dict[str, int] = {}
                for name, node in self._nodes.items():
                    short = [what for what, most in node.items() if needs.get(what, 0) + self._used(name, what) > most]
                    if not short:
                        self._items[key]["spec"]["nodeName"] = name
                        self._set_condition(key, {"status": "True"})
                        return True
                    for what in short:
                        lacks[what] = lacks.get(what, 0) + 1
                reasons = ", ".join(f"{count} Insufficient {what}" for what, count in lacks.items()) or "no nodes"
                message = f"0/{len(self._nodes)} nodes are available: {reasons}."
                self._set_condition(key, {"status": "False", "reason": "Unschedulable", "message": message})
                self._changed.wait()
        return False

    def _has_volumes(self, key: Key) -> bool:
        """Whether the configmaps of a pod are there, which Spark creates after it; or the pod is gone."""
        volumes = self._items[key]["spec"].get("volumes", ()) if key in self._items else ()
        wanted = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        return all(Key("configmaps", key.namespace, name) in self._items for name in wanted)

    def _used(self, node: str, what: str) -> float:
        return sum(
            _requests(item).get(what, 0)
            for item in self._items.values()
            if item.get("spec", {}).get("nodeName") == node and item["status"]["phase"] in ("Pending", "Running")
        )

    def _set_condition(self, key: Key, condition: Item) -> None:
        conditions = [{"type": "PodScheduled", **condition}]
        if self._items[key]["status"]["conditions"] != conditions:
            self._items[key]["status"]["conditions"] = conditions
            self._note(key, "MODIFIED")

    def _set_status(self, key: Key, phase: str, state: Item) -> None:
        pod = self._items[key]
        about = {"name": pod["spec"]["containers"][0]["name"], "image": IMAGE, "imageID": IMAGE, "restartCount": 0}
        about |= {"state": state, "ready": phase == "Running", "started": phase == "Running"}
        pod["status"] |= {"phase": phase, "containerStatuses": [about], "startTime": _now()}
        self._note(key, "MODIFIED")

    def _start(self, key: Key, pod: Item) -> subprocess.Popen[bytes]:
        """Start what the entrypoint of Spark's image would, or the container's own command."""
        directory = self._directory / key.name
        directory.mkdir()
        number = len(self._processes) + 2
        address = f"127.1.{number >> 8}.{number & 255}" if sys.platform == "linux" else "127.0.0.1"
        pod["status"]["podIP"] = address
        if self._has_names:
            self._write_names()
        container = pod["spec"]["containers"][0]
        mounted = self._mount(key, pod, directory)
        environment = self._environment(pod, directory)
        environment |= {name: mounted(value) for name, value in _variables(container, pod).items()}
        command = [mounted(word) for word in (*container.get("command", ()), *container.get("args", ()))]
        if command[0] == "executor":
            command = _executor(environment)
        elif command[0] == "driver":
            own = environment["SPARK_DRIVER_BIND_ADDRESS"]
            settings = [f"spark.driver.bindAddress={own}", f"spark.executorEnv.SPARK_DRIVER_POD_IP={own}"]
            options = [word for setting in settings for word in ("--conf", setting)]
            command = [f"{SPARK}/bin/spark-submit", *options, "--deploy-mode", "client", *command[1:]]
        if self._has_names:
            enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
            mount = f'mount --bind {self._directory}/hosts /etc/hosts && exec "$@"'
            command = [*enter, "sh", "-c", mount, "sh", *command]
        with (directory / "log").open("wb") as log:
            return subprocess.Popen(
                command, cwd=directory, env=environment, stdin=-3, stdout=log, stderr=log, start_new_session=True
            )

    def _environment(self, pod: Item, directory: Path) -> dict[str, str]:
        """What an image and Kubernetes set in a container."""
        outside = ("SPARK", "PYSPARK", "KUBERNETES", "_PYSPARK")
        return {name: value for name, value in os.environ.items() if not name.startswith(outside)} | {
            "SPARK_HOME": SPARK,
            "SPARK_LOCAL_DIRS": str(directory),
            "SPARK_CONF_DIR": str(directory / "conf"),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TMPDIR": str(directory),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }

    def _mount(self, key: Key, pod: Item, directory: Path) -> Callable[[str], str]:
        """Make the volumes that a pod mounts; the result replaces the places that it knows them by."""
        places: dict[str, str] = {}
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            volume, place = volumes[mount["name"]], directory / mount["name"]
            place.mkdir()
            places[mount["mountPath"]] = str(place)
            if "configMap" in volume:
                config = self._items[Key("configmaps", key.namespace, volume["configMap"]["name"])]
                for name, text in config["data"].items():
                    (place / name).write_text(text)

        def mounted(text: str) -> str:
            for inside, place in places.items():
                if text == inside or text.startswith(f"{inside}/"):
                    return place + text[len(inside) :]
            return text

        return mounted

    def _write_names(self) -> None:
        """Write the names of the services, in place, since pods have the file mounted."""
        lines = [f"127.0.0.1 localhost {socket.gethostname()}"]
        for key, service in self._items.items():
            selector = service.get("spec", {}).get("selector") if key.kind == "services" else None
            for pod in self._items.values():
                address = pod.get("status", {}).get("podIP")
                if selector and address and selector.items() <= pod["metadata"].get("labels", {}).items():
                    name = f"{key.name}.{key.namespace}.svc"
                    lines.append(f"{address} {name} {name}.cluster.local {key.name}")
        (self._directory / "hosts").write_text("\n".join(lines) + "\n")


class _Server(ThreadingHTTPServer):
    """An HTTP server that can break its connections."""

    def __init__(self, address: tuple[str, int], handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients break connections, too."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Api(BaseHTTPRequestHandler):
    """HTTP requests for a cluster."""

    protocol_version = "HTTP/1.1"

    def __init__(self, cluster: Kubernetes, *args: Any) -> None:
        self._cluster = cluster
        super().__init__(*args)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        kind, namespace, name, query = self._read()
        if query.get("watch") in ("true", "1"):
            self._stream(kind, namespace, query)
        elif not kind:
            self._answer(lambda: {"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
        elif name:
            self._answer(lambda: self._cluster.get(Key(kind, namespace, name)))
        else:
            self._answer(lambda: self._cluster.find(kind, namespace, query))

    def do_POST(self) -> None:
        kind, namespace, _, _ = self._read()
        item = self._body()
        self._answer(lambda: self._cluster.post(kind, namespace, item), 201)

    def do_PATCH(self) -> None:
        kind, namespace, name, _ = self._read()
        change = self._body()
        applies = "apply-patch" in self.headers.get("Content-Type", "")  # creates what is not there
        self._answer(lambda: self._cluster.patch(Key(kind, namespace, name), change, applies=applies))

    do_PUT = do_PATCH

    def do_DELETE(self) -> None:
        kind, namespace, name, query = self._read()
        self._body()
        if name:
            self._answer(lambda: self._cluster.delete(Key(kind, namespace, name)))
            return
        for item in self._cluster.find(kind, namespace, query)["items"]:
            self._cluster.delete(Key(kind, namespace, item["metadata"]["name"]))
        self._answer(lambda: {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def _read(self) -> tuple[str, str, str, dict[str, str]]:
        """The kind, the namespace, the name and the query of ``/api/v1/namespaces/NAMESPACE/KIND/NAME?QUERY``."""
        url = urlsplit(self.path)
        found = re.fullmatch(r"/apis?/(?:[\w.-]+/)?v\w+/namespaces/([\w.-]+)/(\w+)(?:/([\w.-]+))?", url.path)
        namespace, kind, name = found.groups("") if found else ("", "", "")
        return kind, namespace, name, dict(parse_qsl(url.query))

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")

    def _answer(self, act: Callable[[], Item], code: int = 200) -> None:
        try:
            answer = act()
        except Refused as refused:
            code, answer = refused.code, refused.status
        body = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, kind: str, namespace: str, query: Mapping[str, str]) -> None:
        self.close_connection = True
        if "websocket" in (self.headers.get("Upgrade") or "").lower():
            self._answer(dict)  # fabric8 asks by HTTP after that
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json;stream=watch")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._cluster.watch(kind, namespace, query):
            line = b"\n" if event is None else json.dumps(event).encode() + b"\n"
            if event is not None or self._is_gone():
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _is_gone(self) -> bool:
        """Whether the other side has closed the connection."""
        self.connection.setblocking(False)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        finally:
            self.connection.setblocking(True)


def _is_wanted(key: Key, item: Item, kind: str, namespace: str, query: Mapping[str, str]) -> bool:
    """Whether an item is of a kind, and selected by its labels or its name."""
    labels = item["metadata"].get("labels", {})
    selected = True
    for part in filter(None, query.get("labelSelector", "").split(",")):
        name, operator, value = re.fullmatch(r"(!?[^!=]+)(!=|==?|)(.*)", part).groups()  # type: ignore[union-attr]
        if operator:
            selected &= (labels.get(name) == value) == (operator != "!=")
        else:
            selected &= (name.lstrip("!") in labels) != name.startswith("!")
    if field := query.get("fieldSelector"):
        selected &= field == f"metadata.name={key.name}"
    return selected and (key.kind, key.namespace) == (kind, namespace)


def _check_pod(pod: Item) -> None:
    """Refuse what Kubernetes refuses."""
    wrong = [f"label {it!r}" for it in pod["metadata"].get("labels", {}).values() if not _LABEL.fullmatch(it)]
    volumes = {volume["name"] for volume in pod["spec"].get("volumes", ())}
    for container in pod["spec"]["containers"]:
        wrong += [f"volume {it['name']!r}" for it in container.get("volumeMounts", ()) if it["name"] not in volumes]
        names = [it["name"] for it in container.get("env", ())]
        wrong += [f"variable {name!r}" for name in names if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", name)]
        asked, most = (container.get("resources", {}).get(it, {}) for it in ("requests", "limits"))
        for name in {*asked, *most}:
            if "/" in name and (name not in most or asked.get(name, most[name]) != most[name]):
                wrong.append(f"{name} must have a limit, equal to its request")
            elif name in asked and name in most and quantity(asked[name]) > quantity(most[name]):
                wrong.append(f"request of {name} exceeds its limit")
    if wrong:
        raise Refused(422, "Invalid", f'Pod "{pod["metadata"]["name"]}" is invalid: {", ".join(wrong)}')


def quantity(text: str | int) -> float:
    """The number of a resource: ``"500m"`` of a core is 0.5."""
    found = re.fullmatch(r"([\d.]+)(\w*)", str(text))
    assert found is not None, text
    return float(found[1]) * _UNITS[found[2]]


def _requests(pod: Item) -> dict[str, float]:
    resources = pod["spec"]["containers"][0].get("resources", {})
    return {name: quantity(it) for name, it in (resources.get("limits", {}) | resources.get("requests", {})).items()}


def _variables(container: Item, pod: Item) -> dict[str, str]:
    fields = {"status.podIP": pod["status"]["podIP"], "metadata.name": pod["metadata"]["name"]}
    return {
        it["name"]: fields[it["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in it else it.get("value", "")
        for it in container.get("env", ())
    }


def _executor(environment: Mapping[str, str]) -> list[str]:
    """The command of an executor, as in the entrypoint of Spark's images."""
    java = Path(environment["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in environment else shutil.which("java")
    numbered = {name: text for name, text in environment.items() if name.startswith("SPARK_JAVA_OPT_")}
    options = [numbered[name] for name in sorted(numbered, key=lambda name: int(name.rpartition("_")[2]))]
    told = {
        "driver-url": "SPARK_DRIVER_URL",
        "executor-id": "SPARK_EXECUTOR_ID",
        "cores": "SPARK_EXECUTOR_CORES",
        "app-id": "SPARK_APPLICATION_ID",
        "hostname": "SPARK_EXECUTOR_POD_IP",
        "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
        "podName": "SPARK_EXECUTOR_POD_NAME",
    }
    arguments = [word for option, name in told.items() for word in (f"--{option}", environment[name])]
    heap = f"-Xmx{environment['SPARK_EXECUTOR_MEMORY']}"
    return [str(java), *options, heap, "-cp", f"{SPARK}/jars/*", _EXECUTOR, *arguments]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a container: to the first of its processes, or the end to all of them."""
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if number == signal.SIGKILL else os.kill)(process.pid, number)


def _merge(item: Item, change: Item) -> None:
    for name, value in change.items():
        if value is None:
            item.pop(name, None)
        elif isinstance(value, dict) and isinstance(item.get(name), dict):
            _merge(item[name], value)
        else:
            item[name] = value


def _patch(item: Item, change: Item) -> None:
    """Apply one operation of a JSON patch."""
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in change["path"][1:].split("/"))
    for part in parents:
        item = item.setdefault(part, {})
    if change["op"] == "remove":
        item.pop(last, None)
    else:
        item[last] = change["value"]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
