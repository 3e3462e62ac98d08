"""A script as a training function: what it is sent as, and how a worker runs it."""

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
"""Size of a script and of what it imports from its folder."""


@dataclass(frozen=True)
class Script:
    """A script of Python, to be called as a function.

    Attributes:
        path: Its file on the driver's machine, absolute.
        args: What ``sys.argv`` has behind its path.
        files: The script, and what it imports from its folder, by path in that folder.
    """

    path: str
    args: tuple[str, ...]
    files: Mapping[str, bytes]

    @property
    def __name__(self) -> str:  # by which messages call a function
        return os.path.basename(self.path)

    def __call__(self) -> None:
        """Run it as ``__main__``: from its own folder where that is seen here, else from a copy.

        Raises:
            SystemExit: It has called ``sys.exit`` with something else than success.
        """
        if self._is_seen():
            self._run(self.path)
            return
        folder = tempfile.mkdtemp(prefix="maggy_like-script-")
        try:
            for name, data in self.files.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
            self._run(os.path.join(folder, self.__name__))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run(self, path: str) -> None:
        code = compile(self.files[self.__name__], path, "exec")
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
        finally:  # where the process goes on with other work
            sys.argv, sys.path, sys.modules["__main__"] = argv, search_path, caller

    def _is_seen(self) -> bool:
        """Whether the folder is here too, with the same files."""
        folder = Path(self.path).parent
        try:
            return all((folder / name).read_bytes() == data for name, data in self.files.items())
        except OSError:
            return False


def read_script(path: str | PathLike[str], args: Sequence[object] = ()) -> Script:
    """Read a script and the modules that it imports from its folder.

    Args:
        path: Its file.
        args: Its arguments.

    Raises:
        TrainFunctionError: It cannot be read, is no Python, or brings too much along.
    """
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise TrainFunctionError(f"args must be a list of words, as in ['--epochs', '3'], got {args!r}")
    if not isinstance(path, str | PathLike):
        raise TrainFunctionError(f"the script must be the path of a file, got {path!r}; pass a function to run(...)")
    file = Path(path).expanduser().absolute()
    try:
        text = file.read_bytes()
    except OSError as error:
        raise TrainFunctionError(
            f"the script {str(path)!r} cannot be read ({error.strerror}); pass the path of a file of Python"
        ) from error
    try:
        compile(text, str(file), "exec")
    except (SyntaxError, ValueError) as error:
        raise TrainFunctionError(f"the script {str(path)!r} is no Python: {error}") from error
    files = _with_imports(file)
    if (size := sum(map(len, files.values()))) > MAX_BYTES:
        raise TrainFunctionError(
            f"the script {str(path)!r} and the modules that it imports from its folder have {size / 1e6:.0f} MB, and "
            f"{MAX_BYTES / 1e6:.0f} MB are sent at most; install the larger of them where the workers run"
        )
    return Script(str(file), tuple(map(str, args)), files)


def _with_imports(script: Path) -> dict[str, bytes]:
    """A script, and what it imports from its folder, and so on: modules, and whole packages."""
    folder, found, waiting = script.parent, dict[str, bytes](), [script]
    while waiting:
        file = waiting.pop()
        name = file.relative_to(folder).as_posix()
        if name in found:
            continue
        found[name] = file.read_bytes()
        for module in _imported(found[name]):
            waiting += (folder / module).rglob("*.py")
            waiting += [beside] if (beside := folder / f"{module}.py").is_file() else []
    return found


def _imported(text: bytes) -> Iterator[str]:
    """The first parts of the names of the modules that a file imports; a package's own parts come with it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # whoever imports it hears of this
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module.partition(".")[0]
