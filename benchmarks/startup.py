"""Seconds from a call of ``lagom`` to the end of its first trial, which needs torch, and the CPU seconds of the import.

Each figure is the median over so many processes of their own; ``first`` is the first call in a process, ``second`` the
next one there. Two workers, of which the fastest counts.

``script_s.PLACE`` are the seconds from the start of a script to the end of its first trial, which trains a network on
handwritten digits for one epoch. The script imports torch and scikit-learn at its ``top``, in a ``helper`` module, in
the ``function``, or at its top after ``warm_up``. ``script_s.plain`` imports them at its top and calls the function
itself.

    python -m benchmarks.startup [--quick] [--json PATH]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import parser, publish, search

IMPORT = "import time; from maggy_like import lagom; print(time.process_time())"


def train(x: float) -> float:
    """A trial that needs torch."""
    import torch

    return float(torch.tensor(x))


def first_seconds(engine: str) -> float:
    """Seconds to the end of the first trial of a search."""
    import maggy_like  # noqa: F401  # not counted
    from optimizers.core.events import AttemptEnded, Event

    seen: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, AttemptEnded) and not seen:
            seen.append(time.perf_counter())

    start = time.perf_counter()
    search(train, direction="max", n_trials=4, workers=2, engine=engine, callbacks=[on_event])
    return seen[0] - start


IMPORTS = """
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
"""

FUNCTION = """
def train(lr):
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = map(torch.tensor, train_test_split(x / 16, y, random_state=0))
    model = torch.nn.Linear(64, 10, dtype=torch.double)
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    for rows in torch.randperm(len(x_train)).split(64):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x_train[rows]), y_train[rows]).backward()
        optimizer.step()
    return float((model(x_test).argmax(1) == y_test).double().mean())
"""

SEARCH = """
import time
from maggy_like import Float, lagom

def tell(event):
    if type(event).__name__ == "AttemptEnded":
        print(time.monotonic(), flush=True)

lagom(train, {"lr": Float(1e-3, 1e-1, log=True)}, direction="max", n_trials=4, workers=2, directory="runs",
      progress=False, callbacks=[tell])
"""

WARM_UP = "from maggy_like import warm_up\nwarm_up('torch', 'sklearn.model_selection')\n"

IN_THE_FUNCTION = FUNCTION.replace("(lr):\n", f"(lr):{IMPORTS.rstrip().replace(chr(10), chr(10) + '    ')}\n")

SCRIPTS = {
    "plain": f"{IMPORTS}{FUNCTION}\ntrain(0.01)\nimport time\nprint(time.monotonic())",
    "top": IMPORTS + FUNCTION + SEARCH,
    "helper": f"from helper import train\n{SEARCH}",
    "function": IN_THE_FUNCTION + SEARCH,
    "warm_up": WARM_UP + IMPORTS + FUNCTION + SEARCH,
}


def script_seconds(script: str) -> float:
    """Seconds from the start of a script to the end of its first training."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "helper.py").write_text(IMPORTS + FUNCTION)
        Path(directory, "script.py").write_text(script)
        start = time.monotonic()
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        )
        return float(done.stdout.split()[0]) - start


def child(engine: str) -> None:
    """Two calls in this process."""
    if engine == "spark":
        from maggy_like import spark_session

        spark_session("local[2]").range(1).count()
    print(json.dumps([first_seconds(engine) for _ in range(2)]), flush=True)


def calls(engine: str, times: int) -> tuple[float, float]:
    """The medians of the first and the second call."""
    command = [sys.executable, "-m", "benchmarks.startup", "--child", engine]
    found = [
        json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        for _ in range(times)
    ]
    first, second = (statistics.median(values) for values in zip(*found, strict=True))
    return first, second


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
        return
    arguments = parser(__doc__).parse_args()
    times, on_spark = (3, 1) if arguments.quick else (7, 3)
    imports = [subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True) for _ in range(times)]
    figures = {"import_cpu_s": statistics.median(float(done.stdout) for done in imports)}
    figures["first_s.torch.first"], figures["first_s.torch.second"] = calls("local", times)
    figures["spark.first_s.torch.first"], figures["spark.first_s.torch.second"] = calls("spark", on_spark)
    in_turns = [{place: script_seconds(script) for place, script in SCRIPTS.items()} for _ in range(times)]
    figures |= {f"script_s.{place}": statistics.median(each[place] for each in in_turns) for place in SCRIPTS}
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
