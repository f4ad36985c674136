"""`python -m benchmarks [COMMAND] [options]`: the race without a command; windowed_count,
operators, functions, costs, latency, recovery, pass_through, kafka_read, kafka_race, lake_race,
lake_merges, driver_growth, key_growth, snapshot_cost, manifest_cost, restore_cost,
partition_tops, profile_small_epoch, snapshot_steps, cluster_epochs, cluster_race, state, store,
event_log, ten_streams, nexmark."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks import cluster_epochs, deployments, function_race, operator_race, snapshot_steps
from benchmarks import cluster_race as cluster_racing
from benchmarks import costs as promise_costs
from benchmarks import latency as latencies
from benchmarks import manifest_cost as manifests
from benchmarks import partition_tops as tops
from benchmarks import pass_through as passing
from benchmarks import profile_small_epoch as profile
from benchmarks import recovery as recoveries
from benchmarks import restore_cost as restores
from benchmarks import snapshot_cost as snapshot_costs
from benchmarks import state as large_state
from benchmarks import store as store_benchmark
from benchmarks import windowed_count as count
from benchmarks.nexmark import run as nexmark_benchmark
from benchmarks.nexmark.generator import Format
from benchmarks.nexmark.queries import QUERIES
from benchmarks.operators import OPERATORS
from benchmarks.process import end_on_sigterm
from benchmarks.race import run as race_run
from benchmarks.race.half_load import QUICK, Schedule
from benchmarks.race.results import without_nan
from dagster_jet.connectors.generated.nexmark.model import Model

app = typer.Typer(add_completion=False, invoke_without_command=True)
console = Console()

Quick = Annotated[bool, typer.Option(help="Small sizes: does it work? Figures mean little.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all that was measured here.")]
Rounds = Annotated[
    int | None, typer.Option(help="Each has two slots of either engine; 5, or 1 if quick.")
]
PeerTrigger = Annotated[
    int | None, typer.Option(help="Rows per trigger of the peer, large epochs; else a sweep.")
]
Operators = Annotated[
    list[str] | None, typer.Option("--operator", help="Repeatable; all without it.")
]
Only = Annotated[str, typer.Option(help="large, small or both.")]
Sizes = Annotated[
    list[str] | None, typer.Option("--size", help="Of the state, repeatable; 100MB and 1GB.")
]
Queries = Annotated[list[str] | None, typer.Option("--query", help="Repeatable; all of them.")]


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="jet-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def save(target: Path | None, result: dict[str, Any]) -> None:
    if target is not None:
        target.write_text(json.dumps(without_nan(result), indent=1), encoding="utf-8")


@app.callback()
def everything(context: typer.Context) -> None:
    """Runs the race, if no command is given."""
    end_on_sigterm()
    if context.invoked_subcommand is None:
        race()


@app.command("race")
def race(
    quick: Quick = False,
    part: Annotated[
        list[str] | None,
        typer.Option(help="sweep, backlog, paced or two_sinks, repeatable; all of them."),
    ] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Repeatable; all of them.")] = None,
    query: Queries = None,
    rounds: Annotated[int | None, typer.Option(help="Of runs from a backlog.")] = None,
    fresh: Annotated[
        bool, typer.Option(help="Forget what an earlier, unfinished race has measured.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Race nothing: write tables and pictures anew.")
    ] = False,
) -> None:
    """Races all engines on NEXMark queries; tables and pictures go to benchmarks/results."""
    if report:
        race_run.write_report(Path(__file__).parent.parent, quick=quick, tell=console.print)
        return
    race_run.main(
        Path(__file__).parent.parent,
        quick=quick,
        parts=part or race_run.PARTS,
        engines=engine,
        queries=query,
        rounds=rounds,
        fresh=fresh,
        tell=console.print,
    )


@app.command("windowed_count")
def windowed_count(
    quick: Quick = False,
    rounds: Rounds = None,
    json: Json = None,
    only: Only = "both",
    peer_trigger: PeerTrigger = None,
) -> None:
    """Races dagster_jet against Spark Structured Streaming."""
    with scratch() as folder:
        save(
            json,
            count.run(
                folder,
                rounds=rounds or (1 if quick else 5),
                quick=quick,
                only=only,
                peer_trigger=peer_trigger,
                console=console,
            ),
        )


@app.command("operators")
def operators(
    operator: Operators = None,
    rows: Annotated[int | None, typer.Option(help="Input rows; else 4 M.")] = None,
    rounds: Rounds = None,
    peer_trigger: PeerTrigger = None,
    peer_variant: Annotated[
        str, typer.Option(help="Another of the case's ways to ask the peer.")
    ] = "",
    rows_per_epoch: Annotated[
        int, typer.Option(help="Of ours, at most; the default is that of JobConfig.")
    ] = operator_race.MILLION,
    json: Json = None,
) -> None:
    """Races each stateful operator against the same operator in Structured Streaming."""
    for name in operator or []:
        if name not in OPERATORS:
            raise typer.BadParameter(f"{name}: there are {', '.join(OPERATORS)}")
    with scratch() as folder:
        save(
            json,
            operator_race.run(
                folder,
                names=operator or list(OPERATORS),
                rows=rows,
                rounds=rounds or 5,
                peer_trigger=peer_trigger,
                peer_variant=peer_variant,
                rows_per_epoch=rows_per_epoch,
                console=console,
            ),
        )


@app.command("functions")
def functions(
    rows: Annotated[int, typer.Option(help="Input rows.")] = function_race.DEFAULT_ROWS,
    rounds: Rounds = None,
    rows_per_epoch: Annotated[
        int, typer.Option(help="Of both engines, at most.")
    ] = operator_race.MILLION,
    way: Annotated[list[str] | None, typer.Option(help="Repeatable; all of them.")] = None,
    json: Json = None,
) -> None:
    """Races all ways to ask for a Python function with a state per key."""
    known = [one.name for one in function_race.WAYS]
    for name in way or []:
        if name not in known:
            raise typer.BadParameter(f"{name}: there are {'; '.join(known)}")
    with scratch() as folder:
        result = function_race.run(
            folder,
            rows=rows,
            rounds=rounds or 3,
            rows_per_epoch=rows_per_epoch,
            names=way or [],
            console=console,
        )
        save(json, result)


@app.command("restore_cost")
def restore_cost(quick: Quick = False, json: Json = None) -> None:
    """Cost of a restore at another number of shards, without Spark."""
    save(json, restores.run(quick=quick, console=console))


@app.command("partition_tops")
def partition_tops(quick: Quick = False, json: Json = None) -> None:
    """Cost of observing every partition of a source, by the number of partitions."""
    save(json, tops.run(rounds=2 if quick else 7, console=console))


@app.command("manifest_cost")
def manifest_cost(quick: Quick = False, json: Json = None) -> None:
    """Cost of a manifest by the number of shards, without Spark and store."""
    save(json, manifests.run(quick=quick, console=console))


@app.command("snapshot_cost")
def snapshot_cost(quick: Quick = False, json: Json = None) -> None:
    """Bytes and time per snapshot when 1 % of the state changes."""
    with scratch() as folder:
        save(json, snapshot_costs.run(folder, quick=quick, console=console))


@app.command("profile_small_epoch")
def profile_small_epoch(epochs: int = 160, json: Json = None) -> None:
    """Time of an epoch of 1,000 rows by phase."""
    with scratch() as folder:
        measured, cpu = profile.measure(folder, epochs)
        profile.report(measured, cpu, console)
        save(json, {"epochs": measured, "cpu_ms_per_epoch": cpu})


@app.command("snapshot_steps")
def steps_of_a_snapshot(snapshots: int = 100, json: Json = None) -> None:
    """Milliseconds and requests of each step of a small snapshot, without Spark."""
    with scratch() as folder:
        save(json, snapshot_steps.run(folder, snapshots=snapshots, console=console))


@app.command("cluster_epochs")
def small_epochs_on_a_cluster(
    rounds: Rounds = None,
    stages: Annotated[str, typer.Option(help="one, three or both.")] = "both",
    json: Json = None,
) -> None:
    """Small epochs on a standalone cluster of two workers, beside Structured Streaming."""
    with scratch() as folder:
        found = cluster_epochs.run(folder, rounds=rounds or 1, only=stages, console=console)
        save(json, found)


@app.command("cluster_race")
def race_on_a_cluster(
    query: Annotated[list[str] | None, typer.Option(help="Repeatable; q5, q8 and q11.")] = None,
    minutes: Annotated[float, typer.Option(help="At a steady pace; 0: backlogs only.")] = 2.0,
    json: Json = None,
) -> None:
    """NEXMark queries on a standalone cluster of two workers, beside Structured Streaming."""
    root = Path(__file__).parent.parent
    with scratch() as folder:
        found = cluster_racing.run(
            root, folder, queries=query or [], minutes=minutes, console=console
        )
        save(json, found)


@app.command("costs")
def costs(
    files: Annotated[int, typer.Option(help="Of 20,000 rows.")] = 400,
    rounds: Annotated[int, typer.Option(help="Each has one run of either side.")] = 3,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Cost of exactly once, of three sinks, and of ten times the state; ours against ours."""
    with scratch() as folder:
        size = {"files": 20, "rounds": 1} if quick else {"files": files, "rounds": rounds}
        save(json, promise_costs.run(folder, **size, console=console))


@app.command("pass_through")
def pass_through(
    files: Annotated[int, typer.Option(help="Of 20,000 rows.")] = 100,
    rounds: Annotated[int, typer.Option(help="Each has one run of either writer.")] = 5,
    json: Json = None,
) -> None:
    """Rows that only pass through: our writer against Spark's own."""
    with scratch() as folder:
        save(json, passing.run(folder, files=files, rounds=rounds, console=console))


@app.command("latency")
def latency(
    quick: Quick = False,
    query: Annotated[list[str] | None, typer.Option(help="q1 or q5, repeatable; both.")] = None,
    engine: Annotated[
        list[str] | None, typer.Option(help=f"Repeatable: {', '.join(latencies.RACING)}; all.")
    ] = None,
    minutes: Annotated[float, typer.Option(help="Of latencies, after one of warm-up.")] = 1.0,
    rounds: Rounds = None,
    json: Json = None,
) -> None:
    """Time to the committed row at a steady pace, start and restart, against Spark and PyFlink."""
    with scratch() as folder:
        save(
            json,
            latencies.run(
                Path(__file__).parent.parent,
                folder,
                queries=query or [],
                engines=engine or [],
                rounds=rounds or 1,
                schedule=QUICK if quick else Schedule.counting(minutes),
                console=console,
            ),
        )


@app.command("recovery")
def recovery(
    part: Annotated[
        str, typer.Option(help="drivers, executors or both of these; deploy.")
    ] = "both",
    engine: Annotated[
        list[str] | None, typer.Option(help="Repeatable, of the part; all of them.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="With lost executors, after as many without, at most five.")
    ] = 5.0,
    rounds: Rounds = None,
    json: Json = None,
) -> None:
    """Pauses of committed rows: drivers and executors that are killed, also the peers'; deployments
    of a new version of the code (`--part deploy --rounds 5`: six minutes)."""
    root, found = Path(__file__).parent.parent, {}
    with scratch() as folder:
        if part in ("drivers", "both"):
            found["drivers"] = latencies.run(
                root,
                folder,
                queries=["q1"],
                engines=engine or [],
                rounds=rounds or 1,
                schedule=Schedule(30.0, 45.0, 75.0),
                console=console,
            )
        if part == "deploy":
            found["deploy"] = deployments.run(
                root, folder, deployments=rounds or 5, console=console
            )
        if part in ("executors", "both"):
            found["executors"] = recoveries.run(
                root, folder, engines=engine or [], minutes=minutes, console=console
            )
        save(json, found)


@app.command("kafka_read")
def read_kafka(
    servers: Annotated[str, typer.Option(help="Of a broker; a topic is made there, and deleted.")],
    messages: Annotated[int, typer.Option(help="Of about 40 bytes.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(help="Each has one run of either reader.")] = 5,
    json: Json = None,
) -> None:
    """Messages of a topic into Arrow: our tasks' reader against a bare consumer."""
    from benchmarks import kafka_read

    save(json, kafka_read.run(servers, messages=messages, rounds=rounds, console=console))


@app.command("kafka_race")
def race_kafka(
    quick: Quick = False,
    part: Annotated[
        list[str] | None, typer.Option(help="readers, backlog or paced, repeatable; all of them.")
    ] = None,
    messages: Annotated[int | None, typer.Option(help="Of the backlog; else 2 M.")] = None,
    json: Json = None,
) -> None:
    """Kafka to Kafka and Kafka to PostgreSQL against Structured Streaming; within 26 minutes."""
    from benchmarks.kafka_race import run as kafka_race

    _race_of_parts(kafka_race, part, json, quick=quick, messages=messages)


@app.command("lake_race")
def race_lake(
    quick: Quick = False,
    part: Annotated[
        list[str] | None, typer.Option(help="commits or rates, repeatable; both.")
    ] = None,
    json: Json = None,
) -> None:
    """Files to Delta Lake and Kafka to Iceberg against files of Parquet; within 20 minutes."""
    from benchmarks.lake_race import run as lake_race

    _race_of_parts(lake_race, part, json, quick=quick)


@app.command("lake_merges")
def merge_into_lake(quick: Quick = False, json: Json = None) -> None:
    """Upserts of 10³, 10⁵ and 10⁶ keys into tables of 10⁷ rows; ten minutes."""
    from benchmarks.lake_race import merges

    with scratch() as folder:
        save(json, merges.measured(folder, 200_000 if quick else merges.ROWS, console))


@app.command("driver_growth")
def growth_of_driver(quick: Quick = False, json: Json = None) -> None:
    """Cost of an epoch's readers with 10² to 10⁵ files and 1 to 10³ partitions of a topic."""
    from benchmarks import driver_growth

    with scratch() as folder:
        save(json, driver_growth.run(folder, quick=quick, console=console))


@app.command("key_growth")
def growth_of_state(
    keys: Annotated[list[int] | None, typer.Option(help="Repeatable; 10² to 10⁷.")] = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Cost of a small epoch and of a restart with 10² to 10⁷ keys in the state."""
    from benchmarks import key_growth

    counts = keys or list(key_growth.KEYS[: 2 if quick else None])
    with scratch() as folder:
        save(json, key_growth.run(folder, keys=counts, console=console))


def _race_of_parts(race: Any, parts: list[str] | None, json: Json, **settings: Any) -> None:
    """Runs the asked parts of a race; all without any."""
    unknown = set(parts or []) - set(race.PARTS)
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: none of {', '.join(race.PARTS)}.")
    with scratch() as folder:
        root = Path(__file__).parent.parent
        result = race.main(root, folder, parts=parts or race.PARTS, tell=console.print, **settings)
    save(json, result)
    if "failed" in result:
        console.print(result["failed"])
        raise typer.Exit(1)


@app.command("state")
def state(
    keys: Annotated[int, typer.Option(help="Of the state: 1 or 10 million.")] = 1_000_000,
    changing: Annotated[int, typer.Option(help="Rows per epoch once it is filled.")] = 100_000,
    changes: Annotated[int, typer.Option(help="Epochs once it is filled.")] = 300,
    json: Json = None,
) -> None:
    """Large state: memory of all processes, time to restore it, what a snapshot adds."""
    sizes = large_state.Sizes(keys, changing, changes)
    with scratch() as folder:
        save(json, large_state.run(folder, sizes, console=console))


@app.command("store")
def store(quick: Quick = False, size: Sizes = None, json: Json = None) -> None:
    """Snapshot, restore, repair and single operations of the store, against the same bytes raw."""
    try:
        sizes = size or []
        for text in sizes:
            store_benchmark.parse_size(text)
    except store_benchmark.SizeError as error:
        raise typer.BadParameter(str(error)) from None
    with scratch() as folder:
        save(json, store_benchmark.run(folder, sizes, quick=quick, console=console))


@app.command("event_log")
def event_log(
    reports: Annotated[int, typer.Option(help="Snapshots of a job with two assets.")] = 1_000,
    json: Json = None,
) -> None:
    """Size of a stream's events in Dagster's event log, per report and per month."""
    from benchmarks import event_log as log

    with scratch() as folder:
        save(json, log.run(folder, reports=reports, console=console))


@app.command("ten_streams")
def ten_streams(
    streams: Annotated[int, typer.Option(help="In one code location.")] = 10,
    minutes: Annotated[float, typer.Option(help="In all, starts included.")] = 60,
    json: Json = None,
) -> None:
    """Streams under Dagster on PostgreSQL: memory, ticks, growth of the storage, a kill."""
    from benchmarks.ten_streams import run as ten

    with scratch() as folder:
        save(json, ten.run(folder / "world", ten.Plan(streams, minutes), tell=console.print))


@app.command("nexmark")
def nexmark(
    query: Queries = None,
    events: Annotated[int, typer.Option(help="Of all three kinds.")] = 100_000,
    format: Annotated[Format, typer.Option(help="Of the input files.")] = "json",
    json: Json = None,
) -> None:
    """The NEXMark queries, each compared with DuckDB's answer over the same files."""
    queries = query or list(QUERIES)
    unknown = [name for name in queries if name not in QUERIES]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: none of {', '.join(QUERIES)}.")
    with scratch() as folder:
        result = nexmark_benchmark.run(
            folder, queries, Model(events), format=format, console=console
        )
    save(json, result)
    if not result["is_exact"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
