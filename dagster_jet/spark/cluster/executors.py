"""Asks Spark about its executors: who lives, who was lost, what they cache and how much they hold.

An executor has the id that Spark gave it. No later executor of the same Spark gets it again.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster_jet.spark.cluster.session import LOCAL_CLUSTER, is_local

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

_DRIVER = "driver"
_STATUS_S = 2.0
_WAIT_S = 30.0
"""Seconds; as Spark's own `spark.scheduler.maxRegisteredResourcesWaitingTime`."""
_known: WeakKeyDictionary[SparkContext, dict[str, JavaObject]] = WeakKeyDictionary()
"""The last answer of `executors_known`."""


def executors(session: SparkSession) -> frozenset[str]:
    """Spark's ids of all live executors that can take tasks, and of the driver."""
    return frozenset(executors_known(session))


def executors_known(session: SparkSession) -> dict[str, JavaObject]:
    """Spark's summaries of all live executors that can take tasks, and of the driver, by id.

    The scheduler says who lives: block managers outlive an executor that died before its first
    offer of cores. The status store says who has a block manager, and so can take tasks: the
    summary has a port. It is asked about new executors only, by several calls for each.
    """
    context = session.sparkContext._jsc.sc()
    alive = {_DRIVER, *str(context.getExecutorIds().mkString(",")).split(",")} - {""}
    known = _known.get(session.sparkContext, {})
    if not alive <= known.keys():
        known = {str(e.id()): e for e in _summaries(session) if ":" in str(e.hostPort())}
    known = {number: executor for number, executor in known.items() if number in alive}
    _known[session.sparkContext] = known
    return known


def _summaries(session: SparkSession) -> list[JavaObject]:
    """Asks the status store for all living executors and the driver."""
    listed = session.sparkContext._jsc.sc().statusStore().executorList(True)
    return [listed.apply(number) for number in range(listed.size())]


def executors_with(session: SparkSession, frame: DataFrame, partitions: int) -> frozenset[str]:
    """Ids of all live executors that have some of a frame's cached partitions."""
    context = session.sparkContext._jsc.sc()
    rows = frame.select("*")._jdf.queryExecution().toRdd()  # the frame's own plan may be older
    homes = {
        str(context.getPreferredLocs(rows, number).mkString(",")) for number in range(partitions)
    }
    each = executors_known(session).items()
    return frozenset(number for number, executor in each if _location(executor) in homes)


def _location(executor: JavaObject) -> str:
    """As Spark writes the place of a task."""
    return f"executor_{str(executor.hostPort()).rpartition(':')[0]}_{executor.id()}"


def rows_on(session: SparkSession, executor: JavaObject) -> JavaObject:
    """A row for each core of an executor of `executors_known`, two at least, as Spark's RDD. It is
    read on this executor, and nowhere else as long as that lives."""
    jvm, context = session._jvm, session.sparkContext._jsc.sc()
    gateway = session.sparkContext._gateway
    assert jvm is not None and gateway is not None
    to_seq = jvm.PythonUtils.toSeq
    preferred = to_seq([_location(executor)])
    row = jvm.org.apache.spark.sql.RowFactory.create
    of_row = jvm.scala.reflect.ClassTag.apply(
        jvm.java.lang.Class.forName("org.apache.spark.sql.Row")
    )
    rows = []
    for number in range(max(2, int(executor.totalCores()))):
        values = gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = number
        rows.append(jvm.scala.Tuple2(row(values), preferred))
    return context.makeRDD(to_seq(rows), of_row).toJavaRDD()


def frame_of(session: SparkSession, rows: JavaObject) -> DataFrame:
    """The rows of `rows_on` as a frame."""
    from pyspark.sql import DataFrame
    from pyspark.sql.types import IntegerType, StructField, StructType

    schema = StructType([StructField("id", IntegerType())]).json()
    java = session._jsparkSession
    return DataFrame(java.createDataFrame(rows, java.parseDataType(schema)), session)


def executors_dead(session: SparkSession) -> int:
    """Number of lost executors that Spark remembers (of the last 100 by default)."""
    status = session.sparkContext._jsc.sc().statusStore()
    known = -1
    while known != (seen := int(status.executorList(False).size())):  # none has joined in between
        known, alive = seen, int(status.executorList(True).size())
    return known - alive


def await_status_store(session: SparkSession) -> None:
    """Waits until the status store counts as many executors as the scheduler, for 2 s at most.

    It learns of a loss a moment later. Who began to count in between would take it for a new one.
    """
    context, began = session.sparkContext._jsc.sc(), time.monotonic()
    while time.monotonic() - began < _STATUS_S:
        living = 1 + int(context.getExecutorIds().size())  # and the driver
        if context.statusStore().executorList(True).size() == living:
            return
        time.sleep(0.02)


def await_executors(session: SparkSession) -> None:
    """Waits for a cluster's executors, over which shards are spread, 30 s at most.

    After a loss rows wait, too: the executors that are left take the shards. Those that join later
    get some once they are warm (`Anchored.is_outgrown`).
    """
    wanted, began = 1 + executors_wanted(session), time.monotonic()  # and the driver
    while len(there := executors(session)) < wanted:
        is_loss = len(there) > 1 and executors_dead(session) > 0
        if is_loss or time.monotonic() - began > _WAIT_S:
            return
        time.sleep(0.05)


def memory_bytes(session: SparkSession) -> int:
    """Spark's memory for execution and storage on its executors, in bytes; 0 without executors."""
    there = [e for e in _summaries(session) if is_local(session) or e.id() != _DRIVER]
    return sum(int(executor.maxMemory()) for executor in there)


def executors_wanted(session: SparkSession) -> int:
    """Number of executors beside the driver in the settings; 1 if not set."""
    if is_local(session):
        return 0
    local_cluster = LOCAL_CLUSTER.match(str(session.sparkContext.master))
    if local_cluster:
        return int(local_cluster[1])
    return int(session.sparkContext.getConf().get("spark.executor.instances") or 1)
