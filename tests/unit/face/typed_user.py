"""Right and wrong code of a user, as a type checker sees it: see `test_typing.py`.

A line that ends in ``# refused: code`` is refused with that code; all others are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dagster_jet import (
    Guarantee,
    Jet,
    JetError,
    JetResource,
    Job,
    JobConfig,
    JobResult,
    JobStatus,
    Pipeline,
    Secret,
    Stage,
    State,
    StopKind,
    events,
    sinks,
    sources,
    tables,
    windows,
)
from dagster_jet import (
    aggregates as agg,
)
from dagster_jet.dag import Processor


def delays() -> Pipeline:
    p = Pipeline("delays")
    flights = p.read_from(
        sources.files("in", format="json", schema="origin string, at timestamp, delay double"),
        name="flights",
    ).with_timestamps("at", allowed_lag="2 hours")
    late: Stage = flights.transform(lambda frame: frame.where("delay > 15"), name="late")
    late.group_by("origin").window(windows.tumbling("1 hour")).aggregate(
        n=agg.count(), mean=agg.mean("delay"), name="hourly"
    ).write_to(sinks.files("out", format="json"), name="out")
    late.enrich(tables.files("airports"), on="origin", how="left")
    p.read_from("in", name="text")  # refused: arg-type
    p.read_from(sinks.files("in", format="json"), name="sink")  # refused: arg-type
    late.write_to(sources.files("out", format="json"), name="source")  # refused: arg-type
    late.enrich(sinks.files("out", format="json"), on="origin")  # refused: arg-type
    late.write_to(sinks.files("out", format="avro"), name="avro")  # refused: arg-type
    late.group_by("origin").window("1 hour")  # refused: arg-type
    late.group_by("origin").rolling_aggregate(name="r", n="count")  # refused: call-overload
    late.write_to(sinks.files("out", format="json"))  # refused: call-arg
    late.write_too(sinks.files("out", format="json"), name="o")  # refused: attr-defined
    late.join(late, on="origin", within="1 hour", name="j", how="all")  # refused: arg-type
    late.late_to(sinks.console(), name="l")  # refused: attr-defined
    late.dead_letter_to(sinks.console(), name="d")  # refused: attr-defined
    flights.dead_letter_to(sinks.console(), name="bad").filter("delay > 0")
    joined = late.join(late, on="origin", within="1 hour", name="joined")
    joined.late_to(sinks.console(), name="left", side="left")
    joined.late_to(sinks.console(), name="none")  # refused: call-arg
    return p


class Counter(Processor):
    pass


def stateful(late: Stage) -> None:
    def counted(state: State[int], row: dict[str, Any]) -> dict[str, Any] | None:
        state.value += 1
        return {"origin": row["origin"], "n": state.value}

    def several(state: State[list[str]], row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        state.value.append(row["origin"])
        yield row

    def flat(state: State[int], row: dict[str, Any]) -> int:
        return state.value

    def in_tables(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, None]:
        return rows, None

    keyed = late.group_by("origin")
    keyed.map_stateful(counted, create=int, output_schema="n int", name="counted")
    keyed.map_stateful(several, create=list, output_schema="n int", name="several")
    keyed.map_stateful(flat, create=int, output_schema="n int", name="flat")  # refused: arg-type
    keyed.map_stateful(
        in_tables, in_batches=True, state_schema="n int", output_schema="n int", name="tables"
    )
    keyed.map_stateful(in_tables, output_schema="n int", name="t")  # refused: call-overload
    expiring = keyed.map_stateful(
        counted, create=int, output_schema="n int", name="ttl", ttl="1 hour", on_error="dead-letter"
    )
    expiring.late_to(sinks.console(), name="late").dead_letter_to(sinks.console(), name="dead")
    failing = keyed.map_stateful(
        counted,
        create=int,
        output_schema="n int",
        name="failing",
        order="arrival",
        on_error="dead-letter",
    )
    failing.late_to(sinks.console(), name="late")  # refused: attr-defined
    late.apply_processor(Counter, output_schema="n int", name="processor")
    late.apply_processor(int, output_schema="n int", name="number")  # refused: arg-type


def run(listen: Callable[[events.JobEvent], None]) -> None:
    config = JobConfig(guarantee="at-least-once", snapshot_interval="1 second", parallelism=2)
    JobConfig(guarantee=Guarantee.NONE)
    JobConfig(guarantee="exactly once")  # refused: arg-type
    JobConfig(snapshot_intervall="1 second")  # refused: call-arg
    JetResource(store=["file:///var/jet/a"], lease_tll="1 second")  # refused: call-arg
    JetResource(store=("file:///var/jet/a",), encryption_keys=Secret(env="KEYS"), pyspark=None)
    JetResource(
        store=[Secret(env="STORE")], epochs_storage_options={"access_key_id": Secret(env="ID")}
    )
    with Jet(store=["file:///var/jet/a"], backup_count=0) as jet:
        result: JobResult = jet.run(delays(), config, until="drained", on_event=listen)
        print(result.status is JobStatus.COMPLETED, result.rows_in + 1)
        job: Job = jet.submit(delays())
        steer(job)
        steer(jet.job("delays"))
        steer(jet)  # refused: arg-type
        jet.run("delays")  # refused: arg-type


def steer(job: Job) -> JobResult:
    try:
        job.request_stop(StopKind.SUSPEND)
        job.request_stop("suspend")  # refused: arg-type
        job.resume()
    except JetError as error:
        print(error.cure)
    return job.result(timeout=60)
