"""Logging, warnings, multiprocessing and tracebacks in a trial are as in the script that called ``lagom``."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from sklearn.exceptions import ConvergenceWarning

from maggy_like.protocol.task import LoggerSettings, LogSettings
from maggy_like.train_function.load import set_up_logging
from maggy_like.train_function.pickling import read_logging

SCRIPT = """
import json, logging, multiprocessing, sys, warnings

import tqdm

from maggy_like import Float, lagom

logging.basicConfig(level=logging.INFO, format="{levelname}|{name}|{message}", style="{")
logging.getLogger("quiet").setLevel(logging.ERROR)
log, own = logging.getLogger("app"), logging.getLogger("own")
own.setLevel(logging.DEBUG)
own.addHandler(logging.StreamHandler(sys.stdout))
own.propagate = False

class Box:
    def __init__(self, value):
        self.value = value

class Own(UserWarning):
    pass

def double(box):
    log.info("in the pool")
    return Box(2 * box.value)

def train(x, reporter):
    log.info("started")
    warnings.warn("hidden", Own)
    warnings.warn("Hidden by its beginning")
    warnings.warn("not hidden")
    for _ in tqdm.tqdm(range(100), ascii=True, mininterval=0):
        for _ in tqdm.tqdm(range(3), ascii=True, mininterval=0, leave=False):
            pass
    log.debug("hidden")
    own.debug("deep")
    logging.getLogger("quiet").warning("hidden")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return sum(box.value for box in pool.map(double, [Box(1), Box(2)]))

if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=Own)
    warnings.filterwarnings("ignore", "hidden by")
    result = lagom(train, {"x": Float(0, 1)}, optimizer="random", n_trials=1, workers=1, engine="local", progress=False)
    print(json.dumps([result.best_value, result.log(0).splitlines()]))
"""


@pytest.mark.e2e
def test_a_script_s_logging_its_functions_in_a_pool_and_its_progress_bars_work_in_its_trials(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, timeout=300, check=True)
    value, lines = msgspec.json.decode(done.stdout)
    assert value == 6
    assert lines[0] == "INFO|app|started"
    assert lines[1].endswith("UserWarning: not hidden")
    assert lines[2] == '  warnings.warn("not hidden")'
    assert "idden" not in "".join(lines[3:])
    assert lines[-3:] == ["deep", "INFO|app|in the pool", "INFO|app|in the pool"]
    assert lines[-4].startswith("100%|##########| 100/100 ")
    assert len(lines) <= 8  # 400 refreshes are two lines at most


@pytest.fixture
def fresh() -> Iterator[Callable[[], None]]:
    """Call it, and logging is as in a new process; afterwards it is as before, whatever the test did."""
    root, manager = logging.getLogger(), logging.root.manager
    handlers, level, loggers = list(root.handlers), root.level, dict(manager.loggerDict)

    def start_over() -> None:
        root.handlers.clear()
        root.setLevel(logging.WARNING)
        manager.loggerDict.clear()
        logging.disable(logging.NOTSET)

    yield start_over
    start_over()
    root.handlers[:], root.level = handlers, level
    manager.loggerDict.update(loggers)


Fresh = Callable[[], None]


def travelled(settings: LogSettings) -> LogSettings:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=LogSettings)


def test_where_nothing_was_configured_python_s_default_stays(fresh: Fresh) -> None:
    fresh()
    settings = read_logging()
    assert settings.root == LoggerSettings(logging.WARNING)
    set_up_logging(travelled(settings))
    assert logging.getLogger().handlers == []


def test_a_log_file_of_the_caller_s_is_not_opened_again(
    fresh: Fresh, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh()
    handler = logging.FileHandler(tmp_path / "log")
    logging.basicConfig(level=logging.INFO, handlers=[handler], format="<%(message)s>")
    settings = travelled(read_logging())
    handler.close()
    fresh()
    set_up_logging(settings)
    logging.info("it stands in the trial's log")
    assert capsys.readouterr().err == "<it stands in the trial's log>\n"
    assert (tmp_path / "log").read_text() == ""


def test_a_module_that_configures_its_logger_itself_is_left_alone(fresh: Fresh) -> None:
    fresh()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    settings = travelled(read_logging())
    fresh()
    own = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(own)
    set_up_logging(settings)
    assert logging.getLogger().handlers == [own]
    assert logging.getLogger().level == logging.INFO


def test_a_library_s_loggers_get_their_levels_and_no_second_handler(fresh: Fresh) -> None:
    fresh()
    optuna = logging.getLogger("optuna.study")
    optuna.setLevel(logging.ERROR)
    optuna.addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("py4j")
    settings = travelled(read_logging())
    assert settings.named["optuna.study"] == LoggerSettings(logging.ERROR)
    assert "py4j" not in settings.named


class Bracketed(logging.Formatter):
    """A formatter that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("[{message}]", style="{")
        self.stream = sys.stderr


@pytest.mark.parametrize("broken", [False, True])
def test_of_a_formatter_that_cannot_travel_the_format_does(
    fresh: Fresh, broken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Bracketed())
    logging.getLogger("app").addHandler(handler)
    settings = travelled(read_logging())
    if broken:  # on the way, say by another version
        handlers = tuple(msgspec.structs.replace(it, formatter=b"?") for it in settings.named["app"].handlers)
        settings.named["app"] = LoggerSettings(handlers=handlers)
    fresh()
    set_up_logging(settings)
    logging.getLogger("app").warning("here")
    assert capsys.readouterr().err == ("WARNING:app:here\n" if broken else "[here]\n")


def test_what_is_disabled_stays_so(fresh: Fresh, capsys: pytest.CaptureFixture[str]) -> None:
    fresh()
    logging.disable(logging.ERROR)
    settings = travelled(read_logging())
    fresh()
    set_up_logging(settings)
    logging.getLogger().error("hidden")
    assert capsys.readouterr().err == ""


class Own(UserWarning):
    """A category that a script has made."""


def heard(settings: LogSettings, *said: tuple[str, type[Warning]]) -> list[str]:
    """What of some warnings is shown in a process that has just begun, once it has the settings."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        warnings.simplefilter("always")
        set_up_logging(travelled(settings))
        for message, category in said:
            warnings.warn(message, category, stacklevel=1)
    return [str(warning.message) for warning in shown]


def test_warnings_that_the_caller_ignores_are_silent(fresh: Fresh) -> None:
    fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Own)
        warnings.filterwarnings("ignore", "Converged. not")
        warnings.filterwarnings("ignore", "elsewhere", module="some_other_module")
        warnings.filterwarnings("always", "converged, not really")
        settings = read_logging()
    said = [("own", Own), ("converged, not", UserWarning), ("Converged, not really", UserWarning)]
    assert heard(settings, *said, ("elsewhere", UserWarning)) == ["Converged, not really", "elsewhere"]


def test_warnings_that_the_caller_makes_errors_are_errors_unless_all_are(fresh: Fresh) -> None:
    fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Own)
        warnings.simplefilter("error")  # as a test runner does
        warnings.simplefilter("error", BytesWarning)
        settings = read_logging()
    assert heard(settings, ("own", Own), ("other", UserWarning)) == ["own", "other"]
    with pytest.raises(BytesWarning, match="a text"):
        heard(settings, ("a text", BytesWarning))


def test_no_package_is_imported_because_of_its_warnings(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        settings = read_logging()
    (of_sklearn,) = (it for it in settings.warnings if it.package == "sklearn")
    monkeypatch.setitem(sys.modules, "sklearn", sys.modules["sklearn"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    assert heard(settings, ("one", ConvergenceWarning)) == ["one"]
    assert "sklearn" not in sys.modules
    assert of_sklearn.action == "ignore"
