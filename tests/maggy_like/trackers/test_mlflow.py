"""What a real MLflow server has of a search, and what a search has after its server was killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from maggy_like import Confirmation, Float, Result, lagom
from maggy_like.errors import ConfigError
from maggy_like.trackers import MLflow, TensorBoard
from optimizers.core.events import AttemptEnded, Event
from optimizers.core.trial import TrialState

pytestmark = pytest.mark.filterwarnings("ignore")  # those of MLflow and of what it imports


@dataclass
class Server:
    """A server of MLflow, and the group of its processes."""

    uri: str
    process: subprocess.Popen[bytes]

    def signal(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def kill_after_first(self, event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.trial == 0:
            self.kill()

    def hang_after_first(self, event: Event) -> None:
        if isinstance(event, AttemptEnded) and event.trial == 0:
            self.signal(signal.SIGSTOP)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # processes of its own, for nothing that is asked
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # the client's own; ours come on top
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = tmp_path / "mlflow"
    store.mkdir()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{store}/runs.db", "--artifacts-destination", str(store / "artifacts")),
    ]
    log = (store / "server.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=store)
    found = Server(f"http://127.0.0.1:{port}", process)
    try:
        deadline = time.monotonic() + 240
        while not _answers(f"{found.uri}/health"):
            assert process.poll() is None, (store / "server.log").read_text()
            assert time.monotonic() < deadline, (store / "server.log").read_text()
            time.sleep(0.1)  # it has no other way to say that it is there
        yield found
    finally:
        if process.poll() is None:
            found.kill()
        log.close()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def train(lr: float, reporter: Any) -> dict[str, Any]:
    (reporter.directory / "notes.txt").write_text(f"lr {lr}")
    for step in range(1, reporter.budget + 1):
        reporter.checkpoint({"lr": lr, "step": step})
        reporter.report(score=lr * step, step=step)
    if lr == 0.25:
        raise ValueError("no such file")
    return {"score": lr * reporter.budget, "size": 7.0, "note": "fine"}


def search(directory: Path, callbacks: list[Any], **options: Any) -> Result:
    points = [{"lr": 0.25}, {"lr": 0.5}, {"lr": 0.75}]
    given: dict[str, Any] = {"optimizer": "random", "n_trials": 3, "max_budget": 3, "engine": "inline", "name": "run"}
    given |= {"progress": False, **options}
    given["points_to_evaluate"] = points[: given["n_trials"]]
    return lagom(train, {"lr": Float(0, 1)}, directory=directory, callbacks=callbacks, **given)


@pytest.mark.long
@pytest.mark.e2e
def test_a_search_its_resume_and_a_server_killed_in_mid_search(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    tracker = MLflow("digits", server.uri, patience=240.0)
    search(tmp_path, [tracker], n_trials=2)
    result = search(tmp_path, [tracker], resume=True)

    client = MlflowClient(server.uri)
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert (parent.info.run_name, parent.info.status) == ("run", "FINISHED")
    assert parent.data.params["space.lr"] == "Float(0.0, 1.0)"
    assert parent.data.metrics["best_score"] == result.best_value == 2.25
    nested = {int(run.data.tags["maggy_like.trial"]): run for run in runs if run is not parent}
    assert [nested[trial].info.status for trial in range(3)] == ["FAILED", "FINISHED", "FINISHED"]
    assert [nested[trial].data.params["lr"] for trial in range(3)] == ["0.25", "0.5", "0.75"]
    assert "no such file" in nested[0].data.tags["maggy_like.failure"]
    assert nested[1].data.tags["note"] == "fine"
    assert [nested[trial].data.metrics.get("best_score") for trial in range(3)] == [None, 1.5, 2.25]
    for trial in (1, 2):
        curve = client.get_metric_history(nested[trial].info.run_id, "score")
        assert [(it.step, it.value) for it in curve] == [
            (it, it * result.trials[trial].config["lr"]) for it in (1, 2, 3)
        ]
    state = client.list_artifacts(nested[2].info.run_id, "state")
    assert [Path(it.path).name for it in state] == [str(result.best_checkpoint).rpartition("/")[2]]
    notes = client.download_artifacts(nested[2].info.run_id, "files/notes.txt", str(tmp_path))
    assert Path(notes).read_text() == "lr 0.75"
    config = client.download_artifacts(parent.info.run_id, "best_config.json", str(tmp_path))
    assert json.loads(Path(config).read_text()) == result.best_config

    stopped = search(tmp_path, [MLflow("digits", server.uri, patience=6.0), server.hang_after_first],
                     name="stopped", engine="local", workers=1, progress="plain")  # fmt: skip
    server.signal(signal.SIGCONT)
    assert stopped.counts == {TrialState.COMPLETED: 2, TrialState.FAILED: 1}
    assert len(re.findall("mlflow did not receive", "".join(capfd.readouterr()))) == 1

    events: list[Event] = []
    killed = search(tmp_path, [MLflow("digits", server.uri, patience=5.0), events.append, server.kill_after_first],
                    name="killed", engine="local", workers=1, progress="plain")  # fmt: skip
    assert killed.counts == {TrialState.COMPLETED: 2, TrialState.FAILED: 1}
    ended = {event.trial: event.config["lr"] for event in events if isinstance(event, AttemptEnded)}
    assert ended == {0: 0.25, 1: 0.5, 2: 0.75}
    printed = "".join(capfd.readouterr())
    assert "mlflow did not receive" in printed
    assert "View run" not in printed  # MLflow says so at the end of each nested run


def noisy(lr: float, seed: int = 0) -> dict[str, float]:
    return {"score": 1.0 - lr if seed == 0 else lr}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What stands for a server where nothing is to happen to it."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'runs.db'}"


@pytest.mark.e2e
def test_a_confirmation_has_its_runs_and_its_mean(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # for the artifacts
    points = [{"lr": 0.25}, {"lr": 0.5}]
    result = lagom(noisy, {"lr": Float(0, 1)}, optimizer="random", n_trials=2, points_to_evaluate=points,
                   confirm=Confirmation(top=2, repeats=2), engine="inline", directory=tmp_path, progress=False,
                   callbacks=[MLflow("digits", database, patience=240.0)])  # fmt: skip
    assert result.confirmed is not None
    client = MlflowClient(database)
    runs = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert parent.data.metrics["best_score"] == 0.75
    assert parent.data.metrics["confirmed_score"] == result.confirmed.value == 0.5
    assert parent.data.tags["maggy_like.confirmed_trial"] == "1"
    nested = {int(run.data.tags["maggy_like.trial"]): run for run in runs if run is not parent}
    assert [nested[it].data.tags.get("maggy_like.repeat_of") for it in range(6)] == [None, None, "0", "1", "0", "1"]
    assert [nested[it].data.params.get("seed") for it in range(6)] == [None, None, "1000", "1000", "1001", "1001"]


def report_alike(reporter: Any, **config: Any) -> dict[str, Any]:
    alike = {"recall@5": 0.5, "recall#5": 0.25, "recall_5": 0.125, "x" * 251: 1.0, "x" * 252: 2.0, "best_loss": 9.0}
    alike |= {"val//loss": 3.0, "val/loss": 4.0, "acc/": 5.0, "./f1": 6.0, "../up": 7.0, "/": 8.0}
    for step in (1, 2):
        reporter.report(loss=config["a b"], **alike, step=step)
    return {"loss": config["a b"], "note@": "first", "note#": "second"}


@pytest.mark.e2e
def test_names_that_mlflow_would_make_one_stay_apart_in_a_resumed_run_too(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # for the artifacts
    space = {"a b": [1.0, 2.0], "lr(1)": [0.5], "lr[1]": [0.25]}
    for n_trials in (1, 2):
        lagom(report_alike, space, metric="loss", optimizer="grid", n_trials=n_trials, max_budget=2, engine="inline",
              name="run", directory=tmp_path, progress=False, resume=n_trials > 1,
              callbacks=[MLflow("alike", database, patience=240.0)])  # fmt: skip
    client = MlflowClient(database)
    experiment = client.get_experiment_by_name("alike")
    runs = client.search_runs([experiment.experiment_id])
    nested = {run.data.tags["maggy_like.trial"]: run for run in runs if "maggy_like.trial" in run.data.tags}
    for trial, loss in (("0", 1.0), ("1", 2.0)):
        data = nested[trial].data
        long = "x" * 250
        assert data.metrics == {
            "loss": loss, "recall_5": 0.5, "recall_5_2": 0.25, "recall_5_3": 0.125, long: 1.0, f"{long[:-2]}_2": 2.0,
            "best_loss": 9.0, "best_loss_2": loss, "val/loss": 3.0, "val/loss_2": 4.0, "acc": 5.0, "f1": 6.0,
            "__/up": 7.0, "_": 8.0,
        }  # fmt: skip
        assert {name: data.params[name] for name in ("lr_1_", "lr_1__2")} == {"lr_1_": "0.5", "lr_1__2": "0.25"}
        assert (data.tags["note_"], data.tags["note__2"]) == ("first", "second")
        for name in data.metrics.keys() - {"best_loss_2"}:
            assert [it.step for it in client.get_metric_history(nested[trial].info.run_id, name)] == [1, 2]
    (parent,) = [run for run in runs if "maggy_like.trial" not in run.data.tags]
    assert parent.data.metrics == {"best_loss_2": 1.0}


@contextlib.contextmanager
def answering(status: int, seconds: float) -> Iterator[str]:
    """A server that answers all requests with a status, some time after each."""
    over = threading.Event()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            over.wait(seconds)
            run = {"info": {"run_id": "1", "experiment_id": "1", "status": "RUNNING"}, "data": {}}
            body = json.dumps({"experiment": {"experiment_id": "1", "name": "digits"}, "run": run}).encode()
            with contextlib.suppress(ConnectionError):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_PATCH = do_POST

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.e2e
def test_servers_that_are_absent_ill_or_slow_cost_a_search_no_trial_and_no_more_than_the_patience(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # so that the threads end soon after
    with answering(500, 0.0) as ill, answering(200, 0.5) as slow:
        trackers = [MLflow("digits", uri, patience=1.0) for uri in ("http://127.0.0.1:1", ill, slow)]
        began = time.monotonic()
        result = search(tmp_path, trackers, engine="local", workers=1, progress="plain")
        assert time.monotonic() - began < 60  # it waits for 1 s at most
    assert result.counts == {TrialState.COMPLETED: 2, TrialState.FAILED: 1}
    assert "".join(capfd.readouterr()).count("mlflow did not receive ") == 3


@pytest.mark.parametrize(
    ("tracker", "message"),
    [
        (MLflow(tracking_uri="databricks"), "experiment must be a path in the workspace, got None"),
        (MLflow("digits", "databricks://team"), "experiment must be a path in the workspace, got 'digits'"),
        (MLflow(experiment=""), r"MLflow\(experiment=...\) must be text, got ''"),
        (MLflow(patience=-1.0), r"patience must be seconds from 0 on, got MLflow\(patience=-1.0\); use"),
        (TensorBoard(patience="5"), r"seconds from 0 on, got TensorBoard\(patience='5'\)"),  # type: ignore[arg-type]
        (TensorBoard(logdir=3), r"TensorBoard\(logdir=...\) must be a path, got 3; omit it"),  # type: ignore[arg-type]
        (MLflow, r"callbacks must be objects, got the class MLflow; use MLflow\(\)"),
        ("mlfow", r"no tracker named 'mlfow'; use 'mlflow' or 'tensorboard' \(did you mean 'mlflow'\?\)"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    tracker: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=message):
        search(tmp_path, [tracker])
    assert not list(tmp_path.iterdir())
