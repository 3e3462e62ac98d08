"""A script as a training function: how it is sent, and how a worker runs it."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from maggy_like.errors import TrainFunctionError

MAX_BYTES = 16_000_000
"""Maximum size of a script with the modules that it imports from its directory."""


@dataclass(frozen=True)
class Script:
    """A Python script that can be called like a function."""

    path: str  # absolute path of its file on the driver's machine
    args: tuple[str, ...]  # the arguments in ``sys.argv`` after its path
    files: Mapping[str, bytes]  # the script and the modules that it imports from its directory, by relative path

    @property
    def __name__(self) -> str:  # the name of a function in messages
        return os.path.basename(self.path)

    def __call__(self) -> None:
        """Run it as ``__main__``: from its own directory if that exists here, else from a copy.

        SystemExit is raised if it called ``sys.exit`` with a failure, and only then.
        """
        if self._is_seen():
            self._run(self.path)
            return
        directory = tempfile.mkdtemp(prefix="maggy_like-script-")
        try:
            for name, data in self.files.items():
                file = Path(directory, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            self._run(os.path.join(directory, self.__name__))
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, path: str) -> None:
        code = compile(self.files[self.__name__], path, "exec", dont_inherit=True)
        main = types.ModuleType("__main__")
        vars(main).update(__file__=path, __builtins__=__builtins__)
        argv, search_path, caller = sys.argv, sys.path, sys.modules["__main__"]
        sys.argv, sys.path = [path, *self.args], [os.path.dirname(path), *search_path]
        sys.modules["__main__"] = main
        try:
            exec(code, vars(main))
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:  # the process may continue with other work
            sys.argv, sys.path, sys.modules["__main__"] = argv, search_path, caller

    def _is_seen(self) -> bool:
        """Return whether the directory exists here too, with the same files."""
        directory = Path(self.path).parent
        try:
            return all((directory / name).read_bytes() == data for name, data in self.files.items())
        except OSError:
            return False


def read_script(path: str | PathLike[str], args: Sequence[object] = ()) -> Script:
    """Read a script and the modules that it imports from its directory."""
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise TrainFunctionError(f"args must be a list of arguments, got {args!r}; use ['--epochs', '3']")
    if not isinstance(path, str | PathLike):
        raise TrainFunctionError(f"the script must be the path of a file, got {path!r}; use run(...) for a function")
    file = Path(path).expanduser().absolute()
    try:
        text = file.read_bytes()
    except OSError as error:
        raise TrainFunctionError(
            f"the script {str(path)!r} cannot be read ({error.strerror}); pass the path of a Python file"
        ) from error
    if file.suffix == ".ipynb":
        raise TrainFunctionError(
            f"the script must be a Python file, got the notebook {str(path)!r}; use jupyter nbconvert --to script "
            f"{file.name}"
        )
    try:
        compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise TrainFunctionError(f"the script {str(path)!r} is not valid Python: {error}") from error
    files = _with_imports(file)
    if (size := sum(map(len, files.values()))) > MAX_BYTES:
        raise TrainFunctionError(
            f"the script {str(path)!r} and the modules that it imports from its directory must have at most "
            f"{MAX_BYTES / 1e6:.0f} MB, got {size / 1e6:.0f} MB; install the larger modules where the workers run"
        )
    return Script(str(file), tuple(map(str, args)), files)


def _with_imports(script: Path) -> dict[str, bytes]:
    """Return a script and what it imports from its directory, directly or not: modules, and whole packages."""
    directory, found, waiting = script.parent, dict[str, bytes](), [script]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(directory).as_posix()
        if name in found:
            continue
        found[name] = file.read_bytes()
        for module in _imported(found[name]):
            waiting += (directory / module).rglob("*.py")
            waiting += [neighbor] if (neighbor := directory / f"{module}.py").is_file() else []
    return found


def _imported(text: bytes) -> Iterator[str]:
    """Yield the top-level names of the modules that a file imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # its import raises this error
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module.partition(".")[0]
