"""Opens separate Spark sessions with the settings that epochs need."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_jet.errors import ConfigurationError, MissingEnvironmentError
from dagster_jet.spark.cluster import class_archive, jit, jvm_log
from dagster_jet.spark.tasks import worker_daemon

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_PYSPARK_MIN = (4, 2)
LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)")
_LOCAL_TRIES = re.compile(r"local\[[^,\]]+,\s*(\d+)\s*\]")

DEFAULTS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.app.name": "dagster_jet",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.python.worker.reuse": "true",
    # TCP's delayed ack costs 40 ms in every Python stage.
    "spark.python.unix.domain.socket.enabled": "true",
    # When an executor is lost, tasks of the others are cancelled. They may end for so long, then
    # their Python process is killed; 2 s by default.
    "spark.python.task.killTimeout": "500ms",
    # PySpark would make several more JVM calls per expression to find the source line for
    # errors. It decides once per process, so this cannot be set per session.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.python.daemon.module": worker_daemon.__name__,
    # PySpark writes a larger task to a file, and keeps the file as long as the Spark context: every
    # epoch that makes its frames anew would leave one. 1 MB by default.
    "spark.broadcast.UDFCompressionThreshold": f"{64 << 20}",
}
"""Settings of a Spark that we start."""

_SENT_FILES = "spark.submit.pyFiles"
"""If the engine is among them, workers find it, but the process that forks them does not."""

SQL_DEFAULTS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # List an epoch's files in the driver: a Spark job would cost more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # As many tasks as run at once, even for a thousand small files: Spark's 4 MB make 32 tasks.
    "spark.sql.files.openCostInBytes": "65536",
    # Call sites in error messages cost a stack walk and several JVM calls per column.
    "spark.sql.dataFrameQueryContext.enabled": "false",
    # Below a bound in bytes Spark measures every column after every row it sends to Python, which
    # doubles the cost of flat rows and is quadratic in null lists. The rows of an epoch have a
    # bound in bytes already; batches keep Spark's bound in rows.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}
"""SQL settings of our session only."""

SQL_REQUIRED: Mapping[str, str] = {
    # An epoch is one job with the planned number of tasks: no re-planning.
    "spark.sql.adaptive.enabled": "false",
    # Rows that pass no filter are counted, and their tasks ack. Spark would start no task at all
    # for a filter that is never true, such as one from a configuration.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{rule}"
        for rule in ("PruneFilters", "OptimizeLimitZero", "PropagateEmptyRelation")
    ),
}
"""SQL settings of our session only; they override all others."""

REQUIRED: Mapping[str, str] = {
    # A task must only see its own attempt.
    "spark.speculation": "false",
}

SPARKS_OWN: Mapping[str, str] = {"spark.speculation": "false"}
"""Spark's defaults."""

CLUSTER_REQUIRED: Mapping[str, str] = {
    # A shard's task waits for the executor with the shard's runs; it cannot run elsewhere.
    # Spark waits as long for a dead executor; `ExecutorWatch` does not.
    "spark.locality.wait.process": "600s",
    # Only a shard's anchor decides where its task runs, not the place of its rows.
    "spark.shuffle.reduceLocality.enabled": "false",
    # Shuffle files are lost with an executor, like its runs: restart, do not recompute.
    "spark.stage.maxConsecutiveAttempts": "1",
}

LOOKED_UP_OFTEN = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.api.python.PythonRDD",
    "org.apache.spark.api.python.SimplePythonFunction",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)
"""Classes that PySpark looks up without their package, some 20 times per epoch. Unless they are
imported one by one, the JVM first searches the other packages, in each of Spark's 250 jars."""


_sessions: dict[frozenset[tuple[str, str]], SparkSession] = {}
"""By the requested settings; all belong to one context."""
_opening = threading.Lock()


def open_session(settings: Mapping[str, str]) -> SparkSession:
    """Returns our own session on the process's Spark, which is started if it does not run.

    It has the SQL settings that epochs need; other sessions, above all a user's, keep theirs, and
    their temporary views. The same settings give the same session.

    Callable on any thread; a foreign SIGINT handler stays in place.

    Raises:
        MissingEnvironmentError: no Java, an older PySpark, or the JVM ended at its start.
        ConfigurationError: Spark runs without a required setting that cannot be changed any more.
            Nothing was changed.
    """
    _require_pyspark()
    from pyspark import SparkContext

    with _opening:
        _forget_dead_session()
        running = SparkContext._active_spark_context
        for key, session in list(_sessions.items()):
            if session.sparkContext is not running:
                del _sessions[key]
        asked = frozenset(settings.items())
        if asked not in _sessions:
            if running is None:
                running = _start(settings)
            else:
                _check(running, settings)
            _sessions[asked] = _own_session(running, settings)
        return _sessions[asked]


def activate(session: SparkSession) -> None:
    """Makes it the calling thread's active session, whose settings Spark uses for expressions that
    do not belong to a frame yet."""
    name = "org.apache.spark.sql.classic.SparkSession"
    getattr(session._jvm, name).setActiveSession(session._jsparkSession)


def empty_frame(session: SparkSession, schema: DataType) -> DataFrame:
    """Returns an empty frame that Spark's optimizer does not know to be empty: plans are compared.

    Does not use `createDataFrame`, which makes its session the active one of every thread.
    """
    from pyspark.sql import DataFrame

    java = session._jsparkSession
    none = session.sparkContext._jsc.emptyRDD()
    return DataFrame(java.createDataFrame(none, java.parseDataType(schema.json())), session)


def start_jvm(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Starts Spark's JVM unless it runs; returns the settings of a context in it.

    Raises:
        MissingEnvironmentError: no Java, an older PySpark, or the JVM ended at its start.
    """
    _require_pyspark()
    _require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    archive = class_archive.for_this_machine()
    wanted = with_defaults(settings, archive)
    if _is_on_this_host(wanted["spark.master"]):
        _use_loopback_if_unnamed()
    class_archive.make_later(archive)
    jvm_log.start_jvm(wanted)
    return wanted


def with_defaults(
    settings: Mapping[str, str], archive: class_archive.ClassArchive | None
) -> Mapping[str, str]:
    """The settings of a Spark that we start.

    Args:
        archive: this machine's; executors elsewhere have other files.
    """
    daemon = {"spark.python.daemon.module": "pyspark.daemon"} if settings.get(_SENT_FILES) else {}
    wanted = {**DEFAULTS, **daemon, **settings}
    for name in class_archive.OPTIONS:
        wanted[name] = jit.options_with(wanted.get(name, ""))
        if "driver" in name or _is_on_this_host(wanted["spark.master"]):
            wanted[name] = class_archive.options_with(archive, wanted[name])
    return {**wanted, **_required(wanted["spark.master"])}


def _start(settings: Mapping[str, str]) -> SparkContext:
    from pyspark.sql import SparkSession

    wanted, builder = start_jvm(settings), SparkSession.builder
    for name, value in wanted.items():
        builder = builder.config(name, value)
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    context = builder.getOrCreate().sparkContext
    if handler is not None:
        # PySpark's handler would abort the epoch; Dagster's drains it.
        signal.signal(signal.SIGINT, handler)
    context.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return context


def _use_loopback_if_unnamed() -> None:
    """Lets the JVM start on a host whose name no resolver knows: a container, a laptop off its
    network."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _check(running: SparkContext, settings: Mapping[str, str]) -> None:
    """Raises if a Spark that was started elsewhere lacks a required setting."""
    asked = {**_required(str(running.master))}
    if "spark.master" in settings:
        asked["spark.master"] = settings["spark.master"]
    conf = running.getConf()
    for name, value in asked.items():
        actual = conf.get(name, SPARKS_OWN.get(name))
        if actual != value:
            raise ConfigurationError(
                f"this process already runs Spark with {name}={actual}, but the job needs {value}.",
                cure="Stop that session first, or start it with the needed setting.",
            )


def _own_session(context: SparkContext, settings: Mapping[str, str]) -> SparkSession:
    from py4j.java_gateway import java_import
    from pyspark.sql import SparkSession

    session = SparkSession(context).newSession()
    asked = {name: value for name, value in settings.items() if session.conf.isModifiable(name)}
    for name, value in {**SQL_DEFAULTS, **asked, **SQL_REQUIRED}.items():
        session.conf.set(name, value)
    spread_shuffles(session, settings)
    for name in LOOKED_UP_OFTEN:
        java_import(context._jvm, name)
    if _is_on_this_host(str(context.master)):
        # Users' functions are pickled by module name: workers need our path, including the
        # working directory, which Dagster adds to our path only.
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return session


def spread_shuffles(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Gives a shuffle as many tasks as run at once now, unless the settings say how many. Spark's
    default of 200 makes 200 tiny aggregates of every epoch."""
    name = "spark.sql.shuffle.partitions"
    session.conf.set(name, settings.get(name, str(parallelism(session))))


def _required(master: str) -> Mapping[str, str]:
    return REQUIRED if _is_local_master(master) else {**REQUIRED, **CLUSTER_REQUIRED}


def _forget_dead_session() -> None:
    """Drops a JVM that has died (out of memory, killed), so that a new one starts."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # the JVM cannot be called
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def asks_for_cluster(settings: Mapping[str, str]) -> bool:
    """Whether a session with these settings has executors in other JVMs."""
    return not _is_local_master({**DEFAULTS, **settings}["spark.master"])


def parallelism(session: SparkSession) -> int:
    """Number of tasks that run at once: on a cluster, on the executors that have joined."""
    return int(session.sparkContext.defaultParallelism)


def is_local(session: SparkSession) -> bool:
    """One host, one JVM: every task can read every local run."""
    return _is_local_master(str(session.sparkContext.master))


def retries_in_local_mode(session: SparkSession) -> bool:
    """Whether the master is `local[n, f]` with f > 1: `local` and `local[n]` retry no task."""
    tries = _LOCAL_TRIES.fullmatch(str(session.sparkContext.master))
    return tries is not None and int(tries[1]) > 1


def keeps_workers(session: SparkSession) -> bool:
    """Whether Python workers of this host stay alive after their task."""
    settings = ("spark.python.worker.reuse", "spark.python.use.daemon")
    return is_local(session) and all(session.conf.get(key, "true") == "true" for key in settings)


def _is_local_master(master: str) -> bool:
    return _is_on_this_host(master) and not master.startswith("local-cluster")


def _is_on_this_host(master: str) -> bool:
    """Whether all executors have the packages and files of the driver."""
    return master.startswith("local")


def local_folder(session: SparkSession) -> str:
    """Returns the folder in which Spark keeps shuffled and cached rows on this host."""
    assert session._jvm is not None
    by_default = session._jvm.java.lang.System.getProperty("java.io.tmpdir")
    return str(session.sparkContext.getConf().get("spark.local.dir", str(by_default)))


def _require_pyspark() -> None:
    """Refuses a PySpark that another package has put in the place of ours: pip only warns."""
    import pyspark

    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _PYSPARK_MIN:
        needed = ".".join(map(str, _PYSPARK_MIN))
        raise MissingEnvironmentError(
            f"dagster_jet needs PySpark {needed} or newer, and {pyspark.__version__} is installed.",
            cure=f"pip install 'pyspark>={needed}', and 'pip check' names who wants another one.",
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home:  # Spark uses it before the PATH
        if not os.access(os.path.join(home, "bin", "java"), os.X_OK):
            raise MissingEnvironmentError(
                f"Spark needs Java 17 or newer, and JAVA_HOME={home!r} has no bin/java.",
                cure="Correct JAVA_HOME, or unset it where 'java' is on the PATH.",
            )
        return
    if shutil.which("java") is None:
        raise MissingEnvironmentError(
            "Spark needs Java 17 or newer, and there is no 'java' on the PATH.",
            cure="Install a JDK (for example openjdk-17-jre-headless) or set JAVA_HOME.",
        )
