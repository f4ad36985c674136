"""A Spark session of our own, with the settings that epochs need."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_jet.errors import ConfigurationError, MissingEnvironmentError
from dagster_jet.spark.cluster import class_archive, jit
from dagster_jet.spark.tasks import worker_daemon

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)")

DEFAULTS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.app.name": "dagster_jet",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.python.worker.reuse": "true",
    # TCP's delayed ack costs 40 ms in every Python stage.
    "spark.python.unix.domain.socket.enabled": "true",
    # PySpark would ask the JVM several things more for each expression, for the place in the code
    # that an error can name. It asks once in a process whether to: of a session it is no setting.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Of a Spark that we start."""

LOCAL_DEFAULTS: Mapping[str, str] = {
    # Not on a cluster: its machines may get the engine with the job, behind the daemon's start.
    "spark.python.daemon.module": worker_daemon.__name__,
}

SQL_DEFAULTS: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # List an epoch's files in the driver: a Spark job for it costs more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    # As many tasks as run at once, also for a thousand small files: Spark's 4 MB make 32 of them.
    "spark.sql.files.openCostInBytes": "65536",
    # Call sites in error messages cost a stack walk and several JVM calls per column.
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
"""Of our session only."""

SQL_REQUIRED: Mapping[str, str] = {
    # An epoch is one job with as many tasks as planned: no re-planning in between.
    "spark.sql.adaptive.enabled": "false",
}
"""Of our session only, whatever is asked for."""

REQUIRED: Mapping[str, str] = {
    # Each task must see its own attempt only.
    "spark.speculation": "false",
}

SPARKS_OWN: Mapping[str, str] = {"spark.speculation": "false"}
"""What Spark takes where nothing is set."""

CLUSTER_REQUIRED: Mapping[str, str] = {
    # A shard's task waits for the executor that has the shard's runs; elsewhere it cannot run.
    # Spark waits as long for an executor that has died: `ExecutorWatch` does not.
    "spark.locality.wait.process": "600s",
    # Only a shard's anchor says where its task should run, never where its rows come from.
    "spark.shuffle.reduceLocality.enabled": "false",
    # Shuffle files are lost with an executor, whose runs are lost too: restart, do not recompute.
    "spark.stage.maxConsecutiveAttempts": "1",
}

LOOKED_UP_OFTEN = (
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.api.python.PythonRDD",
    "org.apache.spark.api.python.SimplePythonFunction",
    "org.apache.spark.sql.api.python.PythonSQLUtils",
)
"""PySpark asks for these without their package, some 20 times per epoch. Unless they are imported
one by one, the JVM looks for them in the other packages first, in each of Spark's 250 jars."""


_sessions: dict[frozenset[tuple[str, str]], SparkSession] = {}
"""By the settings that they were asked for; all of one context."""
_opening = threading.Lock()


def open_session(settings: Mapping[str, str]) -> SparkSession:
    """A session of our own on the process's Spark, which is started if nobody has.

    It has the SQL settings that epochs need; those of other sessions, a user's above all, are left
    alone, and so are temporary views. The same settings give the same session.

    Safe to call from any thread; a SIGINT handler that belongs to somebody else stays in place.

    Raises:
        MissingEnvironmentError: no Java.
        ConfigurationError: Spark runs and lacks a setting that cannot be changed any more. Nothing
            of it was changed.
    """
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
    """Makes it the calling thread's: Spark goes by the active session's settings where it is asked
    for an expression, before that belongs to any frame."""
    name = "org.apache.spark.sql.classic.SparkSession"
    getattr(session._jvm, name).setActiveSession(session._jsparkSession)


def empty_frame(session: SparkSession, schema: DataType) -> DataFrame:
    """No rows, which Spark's optimizer does not know: plans on two of them are to be compared.

    Not by `createDataFrame`, which makes its session the active one of every thread.
    """
    from pyspark.sql import DataFrame

    java = session._jsparkSession
    none = session.sparkContext._jsc.emptyRDD()
    return DataFrame(java.createDataFrame(none, java.parseDataType(schema.json())), session)


def _start(settings: Mapping[str, str]) -> SparkContext:
    _require_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    wanted = {**DEFAULTS, **settings}
    if _is_on_this_host(wanted["spark.master"]):
        wanted = {**LOCAL_DEFAULTS, **wanted}
    archive = class_archive.for_this_machine()
    for name in class_archive.OPTIONS if _is_on_this_host(wanted["spark.master"]) else ():
        wanted[name] = class_archive.options_with(archive, jit.options_with(wanted.get(name, "")))
    class_archive.make_later(archive)
    builder = SparkSession.builder
    for name, value in {**wanted, **_required(wanted["spark.master"])}.items():
        builder = builder.config(name, value)
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if in_main else None
    context = builder.getOrCreate().sparkContext
    if handler is not None:
        # PySpark's handler would abort the epoch; Dagster's lets it drain.
        signal.signal(signal.SIGINT, handler)
    context.setLogLevel(settings.get("spark.log.level", "ERROR"))
    return context


def _check(running: SparkContext, settings: Mapping[str, str]) -> None:
    """Whether a Spark that somebody has started before will do."""
    asked = {**_required(str(running.master))}
    if "spark.master" in settings:
        asked["spark.master"] = settings["spark.master"]
    conf = running.getConf()
    for name, value in asked.items():
        actual = conf.get(name, SPARKS_OWN.get(name))
        if actual != value:
            raise ConfigurationError(
                f"this process already runs Spark with {name}={actual}, needed is {value}.",
                cure="Stop that session first, or start it with the needed setting.",
            )


def _own_session(context: SparkContext, settings: Mapping[str, str]) -> SparkSession:
    from py4j.java_gateway import java_import
    from pyspark.sql import SparkSession

    session = SparkSession(context).newSession()
    # Spark's default of 200 makes 200 tiny aggregates of every epoch.
    partitions = {"spark.sql.shuffle.partitions": str(parallelism(session))}
    asked = {name: value for name, value in settings.items() if session.conf.isModifiable(name)}
    for name, value in {**SQL_DEFAULTS, **partitions, **asked, **SQL_REQUIRED}.items():
        session.conf.set(name, value)
    for name in LOOKED_UP_OFTEN:
        java_import(context._jvm, name)
    if _is_on_this_host(str(context.master)):
        # Users' functions travel by the name of their module: workers must find what we find,
        # also in the working directory that Dagster put on our path alone.
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return session


def _required(master: str) -> Mapping[str, str]:
    return REQUIRED if _is_local_master(master) else {**REQUIRED, **CLUSTER_REQUIRED}


def _forget_dead_session() -> None:
    """Lets go of a JVM that has died (out of memory, killed), so that a new one starts."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    context = SparkContext._active_spark_context
    if context is not None:
        context._jsc = None  # nobody is there to be told
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def parallelism(session: SparkSession) -> int:
    """How many tasks run at once."""
    return int(session.sparkContext.defaultParallelism)


def is_local(session: SparkSession) -> bool:
    """One host, one JVM: every task can read every local run."""
    return _is_local_master(str(session.sparkContext.master))


def keeps_workers(session: SparkSession) -> bool:
    """Python workers of this host live on when their task is over."""
    conf = session.sparkContext.getConf()
    settings = ("spark.python.worker.reuse", "spark.python.use.daemon")
    return is_local(session) and all(conf.get(key, "true") == "true" for key in settings)


def _is_local_master(master: str) -> bool:
    return _is_on_this_host(master) and not master.startswith("local-cluster")


def _is_on_this_host(master: str) -> bool:
    """All executors find the packages and files that the driver finds."""
    return master.startswith("local")


def executors(session: SparkSession) -> frozenset[str]:
    """Host and port of every executor that is there, and of the driver."""
    status = session.sparkContext._jsc.sc().getExecutorMemoryStatus()
    return frozenset(str(status.keySet().mkString(",")).split(","))


def executors_dead(session: SparkSession) -> int:
    """How many executors Spark remembers to have lost (of the last 100, unless told otherwise)."""
    status = session.sparkContext._jsc.sc().statusStore()
    # In this order: who joins in between makes it one too few, for now, and never one too many.
    known = int(status.executorList(False).size())
    return known - int(status.executorList(True).size())


def memory_bytes(session: SparkSession) -> int:
    """What Spark has for execution and storage, where tasks run; 0 while no executor is there."""
    known = session.sparkContext._jsc.sc().statusStore().executorList(True)
    executors = [known.apply(number) for number in range(known.size())]
    there = [e for e in executors if is_local(session) or e.id() != "driver"]
    return sum(int(executor.maxMemory()) for executor in there)


def executors_wanted(session: SparkSession) -> int:
    """How many executors beside the driver the settings ask for; 1 where they do not say."""
    if is_local(session):
        return 0
    local_cluster = _LOCAL_CLUSTER.match(str(session.sparkContext.master))
    if local_cluster:
        return int(local_cluster[1])
    return int(session.sparkContext.getConf().get("spark.executor.instances") or 1)


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if home:  # Spark goes by it, whatever is on the PATH
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
