"""The output of Spark's JVM and of its Python workers: a file instead of the terminal.

A JVM writes warnings at its start, and the stack of every task that fails. So the process that
starts it gives it a file, which errors name. The file is removed at the end of a process in which
no error has named it.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster_jet.errors import MissingEnvironmentError

_path: Path | None = None
_is_named = False


def start_jvm(settings: Mapping[str, str]) -> None:
    """Starts Spark's JVM with its output in a new file, unless a JVM runs or was started outside.

    Callable on the thread that opens the session.

    Raises:
        MissingEnvironmentError: the JVM ended before it could be asked. The error has its reason,
            and names the file, which is kept.
    """
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        conf.set(name, value)
    global _path
    descriptor, name = tempfile.mkstemp(prefix=f"dagster-jet-spark-{os.getpid()}-", suffix=".log")
    with os.fdopen(descriptor, "wb") as output:
        launch: Any = java_gateway.launch_gateway
        try:
            gateway = launch(conf, {"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:
            why = reason(Path(name).read_text("utf-8", "replace"))
            raise MissingEnvironmentError(
                f"Spark's JVM ended at its start: {why}",
                cure=f"The whole output is in {name}.",
            ) from error
    if _path is None:
        atexit.register(_remove)
    _path = Path(name)
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def reason(output: str) -> str:
    """Returns the line of a JVM's output that says why it ended: the innermost cause, or the first
    error."""
    lines = [line for line in output.splitlines() if line.strip() and not line[0].isspace()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    errors = [line for line in lines if "Exception" in line or "rror" in line or "nvalid" in line]
    return (causes[-1:] or errors[:1] or lines[-1:] or ["it wrote nothing."])[0]


def note(error: BaseException, *, is_named: bool) -> str | None:
    """Writes an error with all its frames into the file.

    Args:
        is_named: the error names the file, so it is kept.

    Returns:
        The path of the file; None: there is none.
    """
    global _is_named
    if _path is None:
        return None
    _is_named |= is_named
    with suppress(OSError), _path.open("a", encoding="utf-8") as log:
        log.writelines(traceback.format_exception(error))
    return str(_path)


def _remove() -> None:
    if _path is not None and not _is_named:
        with suppress(OSError):
            _path.unlink()
