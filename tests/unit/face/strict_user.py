"""A user's script over the whole face; a strict type checker accepts all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster_pyspark import PySparkResource
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_jet import (
    DagsterJetTranslator,
    Guarantee,
    Jet,
    JetError,
    JetResource,
    JetStageData,
    Job,
    JobConfig,
    JobResult,
    JobStatus,
    JournalConfig,
    Pipeline,
    Secret,
    Stage,
    State,
    StopKind,
    build_jet_asset_checks,
    build_jet_control_job,
    build_jet_cut_assets,
    build_jet_job,
    build_jet_observation_sensor,
    build_jet_openlineage_sensor,
    build_jet_schedule,
    build_jet_snapshot_sensor,
    build_jet_source_assets,
    build_jet_supervisor_sensor,
    events,
    jet_assets,
    sinks,
    sources,
    tables,
    testing,
    windows,
)
from dagster_jet import aggregates as agg
from dagster_jet.dag import Inbox, Processor

DATABASE = Secret(env="DATABASE_URL")


def busy(frame: DataFrame) -> DataFrame:
    return frame.where(F.col("delay") > 15)


def counted(state: State[int], row: dict[str, Any]) -> dict[str, Any] | None:
    state.value += 1
    return {"origin": row["origin"], "n": state.value}


def evicted(key: dict[str, Any], state: int, watermark: int) -> Iterator[dict[str, Any]]:
    yield {"origin": key["origin"], "n": state + watermark}


def reminded(state: State[int], key: dict[str, Any], time_ms: int) -> dict[str, Any]:
    state.set_timer(time_ms + 1_000)
    return {**key, "n": state.value}


def summed(states: Any, rows: Any) -> tuple[Any, Any]:
    return rows, states


class Pairs(Processor):
    def process(self, ordinal: int, inbox: Inbox) -> bool:
        return inbox.peek() is None


def scores(model: list[float], rows: Any) -> Any:
    return rows


def delays() -> Pipeline:
    p = Pipeline("delays")
    flights = (
        p.read_from(
            sources.files("/in", format="json", schema="origin string, at timestamp, delay double"),
            name="flights",
        )
        .dead_letter_to(sinks.files("/out/bad", format="json"), name="bad")
        .with_timestamps("at", allowed_lag="2 hours")
    )
    messages = p.read_from(
        sources.kafka(
            "kafka:9092",
            topics=["flights"],
            format="json",
            schema="origin string, at timestamp, delay double",
            options={"sasl.password": Secret(env="KAFKA_PASSWORD")},
        ),
        name="messages",
    ).with_timestamps("at")
    queue = p.read_from(
        sources.rabbitmq(DATABASE, queue="q", format="json", schema="origin string"), name="queue"
    ).with_ingestion_timestamps()
    p.read_from(sources.sqs("https://sqs.eu.amazonaws.com/1/q", format="raw"), name="sqs")
    p.read_from(sources.sql(DATABASE, table="orders", column="id"), name="orders")
    p.read_from(sources.postgres_changes(DATABASE, slot="s", publication="p"), name="changes")
    p.read_from(sources.map_journal("prices", start="latest"), name="journal")
    p.read_from(sources.map_entries("prices"), name="entries")
    p.read_from(sources.nexmark(count=10), name="nexmark")
    p.read_from(sources.sequence(rate=1), name="sequence")
    p.read_from(sources.items([{"a": 1}], schema="a long"), name="items")
    merged: Stage = flights.merge(messages).transform(busy, name="busy").filter("delay > 0")
    rich = (
        merged.enrich(tables.files("/dim/airports", asset="dim/airports"), on="origin")
        .enrich(tables.delta("/lake/airports", version=12), on="origin")
        .enrich(tables.iceberg("lake", "dim.airports", branch="audited"), on="origin")
        .enrich(tables.map("prices", key="origin", schema="price double"), on="origin")
        .enrich(tables.sql(DATABASE, table="owners"), on="origin", how="inner", refresh="1 hour")
        .select("origin", "at", F.col("delay"))
    )
    scored = rich.map_using_service(
        scores, create=list[float], close=list[float].clear, output_schema="*, score double"
    )
    parts = scored.split(late="score > 0.5", early="delay < 0")
    parts["rest"].join_as_of(flights, on="origin", keep="1 day", name="rated").late_to(
        sinks.files("/out/late_rates", format="json"), name="late_rates", side="right"
    )
    by_origin = rich.group_by("origin")
    hourly = (
        by_origin.window(windows.tumbling("1 hour"), early_results="5 seconds")
        .aggregate(
            n=agg.count(),
            mean=agg.mean("delay"),
            top=agg.top_n(3, "delay"),
            total=agg.sum("delay"),
            least=agg.min("delay"),
            spread=agg.custom(
                list[float],
                lambda kept, row: [*kept, row["delay"]],
                lambda a, b: a + b,
                lambda kept: max(kept) - min(kept),
                columns=["delay"],
                result_type="double",
            ),
            most=agg.max("delay"),
            name="hourly",
        )
        .late_to(sinks.files("/out/late", format="csv"), name="late")
    )
    hourly.write_to(sinks.files("/out", format="parquet"), name="out")
    hourly.write_to(sinks.kafka("kafka:9092", topic="hourly", key="origin"), name="topic")
    hourly.write_to(sinks.sql(DATABASE, table="t", mode="upsert", key="origin"), name="table")
    hourly.write_to(sinks.map_entries("hourly", key="origin"), name="map").dead_letter_to(
        sinks.console(num_rows=5), name="refused"
    )
    rich.window(windows.sliding("1 hour", slide="10 minutes")).aggregate(n=agg.count(), name="all")
    by_origin.window(windows.session("10 minutes", max_duration="1 hour")).aggregate(
        n=agg.count(), name="sessions"
    )
    by_origin.rolling_aggregate(n=agg.count(), ttl="1 day", name="rolling")
    by_origin.deduplicate(within="1 day", name="once").write_to(sinks.collect("x"), name="x")
    rich.join(queue, on="origin", within="1 hour", how="left", name="joined").late_to(
        sinks.files("/out/left", format="json"), name="late_left", side="left"
    ).late_to(sinks.files("/out/right", format="json"), name="late_right", side="right")
    by_origin.map_stateful(
        counted,
        create=int,
        output_schema="origin string, n long",
        name="counted",
        ttl="1 hour",
        on_evict=evicted,
        on_error="dead-letter",
    ).dead_letter_to(sinks.files("/out/failed", format="json"), name="failed")
    by_origin.map_stateful(
        summed, in_batches=True, state_schema="n long", output_schema="n long", name="summed"
    )
    by_origin.map_stateful(
        counted, create=int, output_schema="*, n long", on_timer=reminded, name="reminded"
    ).late_to(sinks.console(), name="late_reminded")
    by_origin.map_stateful(
        counted, create=int, output_schema="*, n long", on_timer=reminded,
        timers="processing time", name="alerted",
    ).filter("n > 1")  # fmt: skip
    by_origin.running(total="sum(delay)", before="lag(delay)", name="running").late_to(
        sinks.console(), name="late_running"
    )
    by_origin.match(late="delay > 60", early="delay < 0", within="1 hour", name="recovered").filter(
        "true"
    )
    by_origin.apply_processor(Pairs, output_schema="n long", name="pairs")
    return p


def listen(event: events.JobEvent) -> None:
    match event:
        case events.EpochCompleted():
            print(event)
        case _:
            pass


def run(pipeline: Pipeline) -> JobResult:
    config = JobConfig(
        guarantee=Guarantee.EXACTLY_ONCE, snapshot_interval="1 second", parallelism=2
    )
    with Jet(
        store=["file:///var/jet/a", Secret(env="JET_STORE")],
        backup_count=0,
        encryption_keys=Secret(env="JET_KEYS"),
        spark={"spark.master": "local[2]"},
    ) as jet:
        jet.map("prices", journal=JournalConfig(capacity=10)).put("a", {"price": 1.0})
        print(jet.guarantees(pipeline, config), jet.plan(pipeline))
        result = jet.run(pipeline, config, until="drained", on_event=listen)
        print(result.status is JobStatus.COMPLETED, result.rows_in)
        return steer(jet.submit(pipeline))


def steer(job: Job) -> JobResult:
    try:
        job.request_stop(StopKind.SUSPEND)
        job.resume()
        export = job.export_snapshot("before")
        print(export.snapshot_id, job.status, job.name)
        if (state := job.read_state("hourly")) is not None:
            print(state.num_rows, [each.added for each in job.diff(1, 2)])
    except JetError as error:
        print(error.cure)
    return job.result(timeout=60)


def tried() -> list[dict[str, Any]]:
    print(testing.collected("x").num_rows)
    return testing.run_pipeline(delays(), {"flights": [{"origin": "JFK"}]})["out"]


class Translator(DagsterJetTranslator):
    def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
        print(data.pipeline)
        return super().get_asset_spec(data)


PIPELINE = delays()


@jet_assets(pipeline=PIPELINE, dagster_jet_translator=Translator())
def delay_assets(context: dg.AssetExecutionContext, jet: JetResource) -> Iterator[object]:
    yield from jet.run(context=context)


job = build_jet_job(delay_assets)
defs = dg.Definitions(
    assets=[delay_assets, *build_jet_source_assets(PIPELINE)],
    asset_checks=[build_jet_asset_checks(delay_assets)],
    jobs=[job, build_jet_control_job(PIPELINE)],
    schedules=[build_jet_schedule(assets=delay_assets, cron_schedule="@hourly")],
    sensors=[
        build_jet_supervisor_sensor(job=job, pipeline=PIPELINE),
        build_jet_observation_sensor(assets=delay_assets),
        build_jet_openlineage_sensor(assets=delay_assets, job_namespace="shop"),
        build_jet_snapshot_sensor(pipeline=PIPELINE, job=job),
    ],
    resources={
        "jet": JetResource(
            store=("file:///var/jet/a", Secret(env="JET_STORE"), dg.EnvVar("JET_OTHER_STORE")),
            encryption_keys=Secret(env="JET_KEYS"),
            epochs_storage_options={"secret_access_key": Secret(env="LAKE_KEY")},
            pyspark=PySparkResource(spark_config={}),
        ),
        "other": JetResource(store=["file:///var/jet/b"], backup_count=0),
    },
)
defs = dg.Definitions.merge(defs, build_jet_cut_assets(delay_assets))
