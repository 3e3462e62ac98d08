"""What the dashboard answers to programs: runs, trials, plots and logs as JSON; and to whom."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_pages import BEGUN, SPACE, STEPS, events, write_run
from served import Served

from maggy_like import lagom, load_run
from maggy_like.dashboard import catalog, followed_run
from maggy_like.dashboard.server import make_server
from maggy_like.errors import UserError
from maggy_like.protocol.endings import Ending
from maggy_like.storage.journal import FORMAT_VERSION, Journal, RunHeader, RunStatus, backend_of
from optimizers.core.events import AttemptEnded, AttemptStarted, Measured, TrialCreated
from optimizers.core.trial import Failure, FailureKind, TrialState

Serve = Callable[..., Served]


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """The files of a directory, with their times and contents."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals are read and answers made at every request."""
    monkeypatch.setattr("maggy_like.cluster_driver.follow.LOOK", 0.0)
    monkeypatch.setattr(followed_run, "REST", 0.0)
    monkeypatch.setattr(catalog, "_REST", 0.0)
    monkeypatch.setattr(catalog, "_SHORTEST", 0.0)


def test_a_directory_has_its_runs_the_newest_first_with_those_that_cannot_be_read(serve: Serve, tmp_path: Path) -> None:
    write_run(tmp_path, "old", 12, 2)
    lagom(lambda x: x, {"x": [1, 2]}, optimizer="grid", engine="inline", metric="score", direction="max",
          directory=tmp_path, name="new", progress=False)  # fmt: skip
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "journal.jsonl").write_text("nothing\n")
    served = serve(tmp_path)
    found = served.json("api/runs")
    assert [run["name"] for run in found["runs"]] == ["new", "old", "broken"]
    new, _, broken = found["runs"]
    assert (new["state"], new["best_value"], new["trials"], new["is_over"]) == ("completed", 2.0, 2, True)
    assert "must be the header of a run" in broken["problem"]
    assert found["run"] is None
    assert [value for _, value in served.json("api/runs/new/curve")] == [1.0, 2.0, 2.0]


def test_a_run_alone_is_the_only_one(serve: Serve, searched: Path) -> None:
    served = serve(searched)
    assert served.json("api/runs")["run"] == "august"
    assert served.json("api/runs/august")["trials"] == 60
    assert served.get("api/runs/other")[0] == 404


def test_a_directory_may_appear_later(serve: Serve, tmp_path: Path, no_pause: None) -> None:
    served = serve(tmp_path / "runs")
    assert served.json("api/runs")["runs"] == []
    write_run(tmp_path / "runs", "august", 3, 1)
    assert [run["name"] for run in served.json("api/runs")["runs"]] == ["august"]


def test_a_run_has_its_best_trial_counts_failures_and_plots(serve: Serve, searched: Path) -> None:
    served, result = serve(searched.parent), load_run(searched)
    run = served.json("api/runs/august")
    assert run["best"]["trial"] == result.best_trial.id if result.best_trial else None
    assert run["best"]["values"] == [result.best_value]
    assert run["best"]["config"] == result.best_config
    assert run["counts"] == {str(state): count for state, count in result.counts.items()}
    assert (run["words"], run["is_over"], run["running"]) == ("completed", True, [])
    details = served.json("api/runs/august/details")
    (cause,) = details["failures"]
    assert (cause["message"], cause["trials"]) == ("ValueError: the loss is nan", [28, 39])
    assert details["busy"] == pytest.approx(0.964, abs=0.001)
    for name in run["figures"]:
        found = served.json(f"api/runs/august/figures/{name}")
        assert found["figure"] is not None, found["note"]
    assert served.get("api/runs/august/figures/nothing")[0] == 404


def test_trials_are_filtered_searched_sorted_and_cut_by_the_server(serve: Serve, searched: Path) -> None:
    served, result = serve(searched.parent), load_run(searched)
    best = served.json("api/runs/august/trials?sort=value&order=desc&limit=5")
    ranked = sorted((trial.value for trial in result.trials if trial.value is not None), reverse=True)
    assert [trial["values"][0] for trial in best["trials"]] == ranked[:5]
    assert best["total"] == 60
    failed = served.json("api/runs/august/trials?state=failed")
    assert [trial["trial"] for trial in failed["trials"]] == [28, 39]
    assert {trial["config"]["activation"] for trial in served.json("api/runs/august/trials?q=tanh")["trials"]} == {
        "tanh"
    }
    by_lr = served.json("api/runs/august/trials?sort=config:lr&order=asc&limit=60")["trials"]
    assert [trial["config"]["lr"] for trial in by_lr] == sorted(trial.config["lr"] for trial in result.trials)
    rest = served.json("api/runs/august/trials?offset=58&limit=50")
    assert [trial["trial"] for trial in rest["trials"]] == [58, 59]


@pytest.mark.parametrize(
    "query", ["sort=color", "sort=value:1", "order=up", "offset=-1", "limit=many", "sort=config:nothing"]
)
def test_a_query_that_means_nothing_is_rejected(query: str, serve: Serve, searched: Path) -> None:
    status, _, body = serve(searched.parent).get(f"api/runs/august/trials?{query}")
    assert status == 400
    assert "must be" in json.loads(body)["error"]


def test_a_trial_has_its_curves_attempts_decisions_and_failure(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent)
    trial = served.json("api/runs/august/trials/28")
    assert (trial["state"], trial["attempts"]) == ("failed", 1)
    (attempt,) = trial["all_attempts"]
    assert attempt["failure"]["kind"] == "exception"
    assert "line 12, in train" in attempt["failure"]["traceback"]
    assert [text for _, text in trial["decisions"]][-1].startswith("attempt 1 ends, failed: exception")
    curves = served.json("api/runs/august/trials/28/curves")
    assert curves["accuracy"]["steps"] == list(range(1, STEPS + 1))
    assert served.json("api/runs/august/figures/trial?trial=28")["figure"]["data"][0]["x"]
    for number in ("60", "-1", "x", "1e3"):
        assert served.get(f"api/runs/august/trials/{number}")[0] == 404


@pytest.mark.slow
def test_a_log_is_shown_from_its_end_and_whole_by_request(serve: Serve, tmp_path: Path) -> None:
    def talks(x: int, reporter: Any) -> float:
        print("<b>first</b>")
        print("\n".join(f"line {number}" for number in range(20_000)))
        print("\x1b[31mlast\x1b[0m")
        return float(x)

    lagom(talks, {"x": [1]}, optimizer="grid", workers=1, metric="score", direction="max", directory=tmp_path,
          name="run", progress=False)  # fmt: skip
    served = serve(tmp_path)
    status, headers, body = served.get("api/runs/run/trials/0/log")
    lines = body.decode().splitlines()
    assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
    assert lines[-1] == "last"
    assert lines[0].startswith("line ")
    assert served.get("api/runs/run/trials/0/log?whole=1")[2].startswith(b"<b>first</b>\nline 0\n")
    assert served.json("api/runs/run/log")["trials"][0]["lines"][-1] == "last"


@pytest.mark.parametrize("directory", ["path", "memory"])
def test_files_of_a_trial_are_listed_and_only_harmless_ones_are_shown(
    directory: str, serve: Serve, tmp_path: Path
) -> None:
    def writes(x: int, reporter: Any) -> float:
        for name, content in {"plots/a #1.png": b"picture", "page.html": b"<script>", "log.txt": b"<b>"}.items():
            (reporter.directory / name).parent.mkdir(exist_ok=True)
            (reporter.directory / name).write_bytes(content)
        (reporter.directory / "out").symlink_to("/etc/passwd")
        return float(x)

    where = str(tmp_path) if directory == "path" else f"memory://{tmp_path.name}"
    lagom(writes, {"x": [1]}, optimizer="grid", engine="inline", metric="score", direction="max", directory=where,
          name="run", progress=False)  # fmt: skip
    served = serve(where)
    listed = served.json("api/runs/run/trials/0/files")
    assert listed["files"] == [{"name": "log.txt", "size": 3}, {"name": "page.html", "size": 8},
                               {"name": "plots/a #1.png", "size": 7}]  # fmt: skip
    assert listed["left_out"] == ["out (a link out of the trial's directory)"]
    status, headers, body = served.get("api/runs/run/trials/0/files/plots/a%20%231.png")
    assert (status, headers["Content-Type"], body) == (200, "image/png", b"picture")
    _, headers, body = served.get("api/runs/run/trials/0/files/log.txt")
    assert (headers["Content-Type"], body) == ("text/plain; charset=utf-8", b"<b>")
    _, headers, body = served.get("api/runs/run/trials/0/files/page.html")
    assert (headers["Content-Type"], body) == ("application/octet-stream", b"<script>")
    assert headers["Content-Disposition"] == "attachment; filename*=UTF-8''page.html"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    for guess in ("out", "..%2F00000.json", "%2Fetc%2Fpasswd", "plots", ""):
        assert served.get(f"api/runs/run/trials/0/files/{guess}")[0] == 404


def test_links_to_other_files_of_the_machine_are_not_followed(serve: Serve, tmp_path: Path) -> None:
    def writes(x: int, reporter: Any) -> float:
        (reporter.directory / "notes.txt").write_text("notes")
        return float(x)

    secret = tmp_path / "notes.txt"
    secret.write_text("secret")
    run = tmp_path / "runs" / "run"
    lagom(writes, {"x": [1, 2]}, optimizer="grid", engine="inline", metric="score", direction="max",
          directory=run.parent, name="run", progress=False)  # fmt: skip
    (run / "files").rename(tmp_path / "files")
    (run / "files").symlink_to(tmp_path / "files")  # by the owner, to have them on another disk
    served = serve(run.parent)
    assert served.get("api/runs/run/trials/0/files/notes.txt")[2] == b"notes"
    (run / "files" / "00000" / "notes.txt").unlink()
    (run / "files" / "00000" / "notes.txt").symlink_to(secret)
    shutil.rmtree(run / "files" / "00001")
    (run / "files" / "00001").symlink_to(tmp_path)
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "00000.log").symlink_to(secret)
    for place in ("0/files/notes.txt", "1/files/notes.txt", "0/log", "0/log?whole=1"):
        status, _, body = served.get(f"api/runs/run/trials/{place}")
        assert (status, b"secret" in body) == (404, False), place


def test_what_happens_is_seen_at_the_next_look(serve: Serve, journal: Journal, tmp_path: Path, no_pause: None) -> None:
    served = serve(tmp_path)
    before = served.json("api/runs/live")
    config = SPACE.sample(np.random.default_rng(0))
    journal.append([TrialCreated(0, config, ask=0), AttemptStarted(0, 1, 3, STEPS, BEGUN + 1.0, config, ask=0)])
    journal.append([Measured(0, 1, "accuracy", {"accuracy": ([1, 2], [0.25, 0.5])})])
    running = served.json("api/runs/live")
    failure = Failure(FailureKind.EXCEPTION, "ValueError: nan", "", ("ValueError",), "train")
    journal.append([AttemptEnded(0, 1, TrialState.FAILED, BEGUN + 5.0, failure=failure)])
    journal.note(RunStatus(Ending.STOPPED, BEGUN + 6.0, 6.0))
    ended = served.json("api/runs/live")
    assert (before["trials"], before["words"]) == (0, "starting")
    (trial,) = running["running"]
    assert (trial["trial"], trial["worker"], trial["step"], trial["newest"]) == (0, 3, 2, 0.5)
    assert (running["words"], running["best"]["values"]) == ("searching", [0.5])
    assert (ended["words"], ended["counts"], ended["is_over"]) == ("stopped", {"failed": 1}, True)


def test_the_time_of_a_running_trial_counts_until_now(serve: Serve, tmp_path: Path, no_pause: None) -> None:
    now = time.time()
    journal = Journal(backend_of(str(tmp_path / "live")))
    space = SPACE.to_json()
    journal.begin(RunHeader(FORMAT_VERSION, "live", now - 900.0, space, "Random()", ["max"], ["accuracy"], 0, STEPS))
    journal.note(RunStatus(Ending.RUNNING, now - 900.0))
    config = SPACE.sample(np.random.default_rng(0))
    journal.append([TrialCreated(0, config, ask=0), AttemptStarted(0, 1, 0, STEPS, now - 600.0, config, ask=0)])
    served = serve(tmp_path)
    run, trial = served.json("api/runs/live"), served.json("api/runs/live/trials/0")
    seconds = {served.json("api/runs/live")["seconds"] for _ in range(2)}
    journal.close()
    (running,) = run["running"]
    assert 600.0 <= running["running"] < 700.0
    assert 600.0 <= trial["seconds"] == pytest.approx(trial["all_attempts"][0]["seconds"], abs=1.0)
    assert 900.0 <= min(seconds) < max(seconds) < 1000.0, "each answer is as of now"


def test_an_interrupted_attempt_is_not_among_the_failures(serve: Serve, journal: Journal, tmp_path: Path) -> None:
    config = SPACE.sample(np.random.default_rng(0))
    kinds = (FailureKind.DRIVER_LOST, FailureKind.WORKER_LOST)
    journal.append([TrialCreated(0, config, ask=0)])
    for attempt, kind in enumerate(kinds, start=1):
        journal.append([
            AttemptStarted(0, attempt, 0, STEPS, BEGUN + attempt, config, ask=0),
            AttemptEnded(0, attempt, TrialState.PENDING, BEGUN + attempt, failure=Failure(kind, kind.value)),
        ])  # fmt: skip
    served = serve(tmp_path)
    details = served.json("api/runs/live/details")
    assert (details["failed_attempts"], [it["kind"] for it in details["failures"]]) == (1, ["worker_lost"])
    attempts = served.json("api/runs/live/trials/0")["all_attempts"]
    assert [it["failure"]["kind"] for it in attempts] == ["driver_lost", "worker_lost"]


def test_a_training_that_failed_counts_as_a_failed_trial(serve: Serve, journal: Journal, tmp_path: Path) -> None:
    config = SPACE.sample(np.random.default_rng(0))
    failure = Failure(FailureKind.EXCEPTION, "ValueError: nan", "", ("ValueError",), "train")
    journal.append([
        TrialCreated(0, config, training=STEPS),
        AttemptStarted(0, 1, 0, STEPS, BEGUN + 1.0, config, training=STEPS),
        AttemptEnded(0, 1, TrialState.FAILED, BEGUN + 2.0, failure=failure),
    ])  # fmt: skip
    details = serve(tmp_path).json("api/runs/live/details")
    assert (details["failed_attempts"], details["failed_trials"]) == (1, 1)


def test_a_killed_run_is_read_once_for_the_list(serve: Serve, journal: Journal, tmp_path: Path, no_pause: None) -> None:
    journal.append(list(events(6, 2)))
    journal.close()  # without an end
    served = serve(tmp_path)
    followed = served.server.catalog.followed

    def state() -> str:
        while (found := served.json("api/runs")["runs"][0]["state"]) == "reading":
            pass
        return str(found)

    assert state() == "killed"
    followed.clear()
    assert (state(), followed) == ("killed", {})
    resumed = Journal(backend_of(str(tmp_path / "live")))
    resumed.read()
    resumed.note(RunStatus(Ending.RUNNING, BEGUN + 1000.0))
    assert (state(), [*followed]) == ("searching", ["live"])
    resumed.close()


def test_a_part_of_a_run_is_not_taken_for_a_trial(serve: Serve, searched: Path) -> None:
    served = serve(searched)
    for part in ("details", "decisions", "log"):
        assert served.get(f"api/runs/august/{part}")[0] == 200
        assert served.get(f"api/runs/august/trials/{part}")[0] == 404


def test_a_run_at_a_url_is_followed(serve: Serve, tmp_path: Path) -> None:
    directory = f"memory://{tmp_path.name}"
    lagom(lambda x: x, {"x": [1, 2]}, optimizer="grid", engine="inline", metric="score", direction="max",
          directory=directory, name="run", progress=False)  # fmt: skip
    served = serve(directory)
    assert [run["name"] for run in served.json("api/runs")["runs"]] == ["run"]
    assert served.json("api/runs/run")["best"]["values"] == [2.0]


def test_a_damaged_journal_is_shown_as_far_as_it_is_intact(serve: Serve, tmp_path: Path) -> None:
    journal = write_run(tmp_path, "torn", 12, 2) / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[20] = b"nothing\n"
    journal.write_bytes(b"".join(lines))
    served = serve(tmp_path)
    assert served.json("api/runs/torn")["trials"] > 5
    assert "line 21 is damaged" in served.json("api/runs/torn/details")["damage"][0]


def test_it_changes_no_file_and_several_may_look(serve: Serve, journal: Journal, tmp_path: Path) -> None:
    journal.append(list(events(10, 2)))
    before = contents(tmp_path)
    for served in (serve(tmp_path), serve(tmp_path)):
        assert served.json("api/runs/live")["trials"] == 10
        served.json("api/runs")
        served.json("api/runs/live/details")
        served.get("api/runs/live/trials/3/log")
    assert contents(tmp_path) == before
    journal.append([])  # its lock is still that of the driver


def test_an_answer_that_has_not_changed_is_not_sent_again(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent)
    _, headers, body = served.get("api/runs/august/trials", **{"Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(body))["total"] == 60
    status, _, again = served.get("api/runs/august/trials", **{"If-None-Match": headers["ETag"]})
    assert (status, again) == (304, b"")


def test_the_page_can_load_and_send_nothing_from_or_to_elsewhere(serve: Serve, searched: Path) -> None:
    served = serve(searched)
    for path in ("", "dashboard.js", "dashboard.css"):
        status, headers, body = served.get(path)
        assert status == 200
        assert b"https://" not in body
        assert b"innerHTML" not in body
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "'unsafe-inline'" not in headers["Content-Security-Policy"].split("style-src")[0]
    assert len(served.get("plotly.js")[2]) > 1e6


@pytest.mark.parametrize(
    "path",
    [
        "api/runs/..", "api/runs/..%2f..%2fetc%2fpasswd", "api/runs/%2e%2e/trials", "api/runs/%2Fetc", "api/runs/.",
        "..%2f..%2fetc/passwd", "page/index.html", "dashboard.py", "api", "api/runs/august/figures/..%2fcurves",
        "api/runs/august/trials/0/log/..", "api/runs/august/journal.jsonl", "api/runs/august%00",
    ],
)  # fmt: skip
def test_a_guess_of_a_path_leads_nowhere(path: str, serve: Serve, searched: Path) -> None:
    assert serve(searched.parent).get(path)[0] == 404


def test_other_hosts_need_the_token(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent, host="0.0.0.0")
    token = served.server.token
    assert len(token) > 30
    assert served.server.url.endswith(f"/?token={token}")
    for path in ("", "api/runs", "plotly.js", "api/runs/..%2f..", "api/runs?token=wrong", f"?token={token[:-1]}"):
        status, _, body = served.get(path)
        assert status == 403
        assert b"needs its token" in body
    assert served.get("api/runs", Authorization=f"Bearer {token}")[0] == 200
    assert served.get(f"api/runs?token={token}")[0] == 200
    assert served.get("api/runs", Cookie=f"maggy_like_{served.server.port}={token}")[0] == 200


def test_the_token_moves_from_the_link_to_a_cookie_that_scripts_cannot_read(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent, host="0.0.0.0")

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    address = f"http://127.0.0.1:{served.server.port}/?token={served.server.token}&run=august"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.build_opener(Stay).open(address, timeout=60)
    with caught.value as answer:
        assert answer.code == 303
        assert answer.headers["Location"] == "./?run=august"
        assert "HttpOnly; SameSite=Strict" in answer.headers["Set-Cookie"]


def test_a_name_of_another_site_that_leads_here_is_not_answered(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent)
    for foreign in ("evil.example", "[::1"):
        assert served.get("api/runs", Host=foreign)[0] == 403
    assert served.get("api/runs", Host=f"localhost:{served.server.port}")[0] == 200


def test_only_get_is_answered(serve: Serve, searched: Path) -> None:
    served = serve(searched.parent)
    request = urllib.request.Request(f"{served.server.url}api/runs", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as answer:
        assert answer.code == 501


def test_a_result_opens_and_closes_its_dashboard(searched: Path) -> None:
    with load_run(searched).dashboard() as dashboard:
        with urllib.request.urlopen(f"{dashboard.url}api/runs", timeout=60) as answer:
            assert json.loads(answer.read())["run"] == "august"
        assert repr(dashboard) == dashboard.url
        assert f'<iframe src="{dashboard.url}"' in dashboard._repr_html_()
    assert "maggy-dashboard" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(OSError):  # noqa: PT011  # the message is the system's
        urllib.request.urlopen(f"{dashboard.url}api/runs", timeout=60)


def test_a_port_in_use_is_named(serve: Serve, searched: Path) -> None:
    port = serve(searched).server.port
    with pytest.raises(UserError, match=rf"cannot use port {port} of 127\.0\.0\.1 .*; use another port, or 0"):
        load_run(searched).dashboard(port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 0, "cannot use the host 'no.such.host.invalid' .*; use a name or address of this"),
        ("a" * 64 + ".com", 0, "cannot use the host 'aaa"),
        ("127.0.0.1", 99999, "port must be an integer of at most 65535, got 99999"),
    ],
)
def test_an_impossible_host_or_port_is_named(host: str, port: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        make_server(str(tmp_path), host, port)


def test_runs_that_nobody_looks_at_are_forgotten(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        write_run(tmp_path, name, 3, 1)
    served = serve(tmp_path)
    served.json("api/runs/one")
    assert list(served.server.catalog.followed) == ["one"]
    monkeypatch.setattr(catalog, "IDLE", 0.0)
    served.json("api/runs/two")
    assert list(served.server.catalog.followed) == ["two"]
