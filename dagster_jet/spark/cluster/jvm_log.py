"""The output of Spark's JVM and of its Python workers: a file instead of the terminal.

PySpark writes the stack of an expression that cannot be planned to the terminal, and raises it. A
JVM writes warnings at its start, and the stack of every task that fails. So the process that
starts it gives it a file in the JVM's folder. An error that names the file moves it out of there:
what remains in the folder goes with it.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dagster_jet.errors import MissingEnvironmentError
from dagster_jet.spark.cluster.jvm_folder import DEFAULT_OPTIONS, DRIVER_OPTIONS, JvmFolder

_TOO_OLD = re.compile(r"UnsupportedClassVersionError: .* up to (\d+)\.0")
"""Spark's classes are newer than the JVM, which says the newest version that it knows."""
_CLASS_VERSION_0 = 44
"""Java n has the class file version 44 + n."""

_LOGGERS_OF_STACKS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Their only records are errors that are raised as well."""

_folder: JvmFolder | None = None
_log: Path | None = None


def start_jvm(settings: Mapping[str, str]) -> None:
    """Starts Spark's JVM with a folder of its own, unless a JVM runs or was started outside.

    Callable on the thread that opens the session.

    Raises:
        MissingEnvironmentError: the JVM ended before it could be asked. The error has its reason,
            and names the file, which is kept.
        ConfigurationError: another user has made the place of the JVMs' folders.
    """
    from pyspark import SparkConf, SparkContext, java_gateway
    from pyspark.errors import PySparkRuntimeError
    from pyspark.logger import PySparkLogger

    for name in _LOGGERS_OF_STACKS:
        # Its getLogger would switch the class of loggers that other threads make meanwhile.
        logging.Logger.manager.loggerDict.setdefault(name, PySparkLogger(name))
        logging.getLogger(name).disabled = True
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    global _folder, _log
    if _folder is not None:
        _folder.release()  # its JVM has died
        _folder = None
    _folder = folder = JvmFolder.make()
    _log = folder.log
    conf = SparkConf(loadDefaults=False)
    for name, value in {**folder.socket_settings(), **settings}.items():
        conf.set(name, value)
    options = (settings.get(name, "") for name in (DRIVER_OPTIONS, DEFAULT_OPTIONS))
    conf.set(DRIVER_OPTIONS, folder.options_with(*options))
    with _log.open("wb") as output:
        launch: Any = java_gateway.launch_gateway
        how = {"stdout": output, "stderr": output, "pass_fds": (folder.descriptor,)}
        try:
            gateway = launch(conf, how)
        except PySparkRuntimeError as error:
            why = reason(_log.read_text("utf-8", "replace"))
            _log = folder.kept_log()
            ended = MissingEnvironmentError(f"Spark's JVM ended at its start: {why}")
            ended.see(f"Spark's log {_log}")
            raise ended from error
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def reason(output: str) -> str:
    """Returns the line of a JVM's output that says why it ended: the innermost cause, or the first
    error."""
    if found := _TOO_OLD.search(output):
        version = int(found[1]) - _CLASS_VERSION_0
        return f"it is Java {version}, and Spark needs 17 or newer. Set JAVA_HOME to a newer one."
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
    global _log
    if _folder is None or _log is None:
        return None
    if is_named:
        _log = _folder.kept_log()
    with suppress(OSError), _log.open("a", encoding="utf-8") as log:
        log.writelines(traceback.format_exception(error))
    return str(_log)
