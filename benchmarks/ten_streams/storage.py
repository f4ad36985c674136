"""Size of a Dagster instance on PostgreSQL, and the ticks of its supervisors."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

import dagster as dg
from dagster._core.definitions.run_request import InstigatorType

from tests.servers.postgres import PostgresDatabase

_SIZES = """
select relname, pg_total_relation_size(relid) from pg_catalog.pg_statio_user_tables
"""
_EVENTS = "select count(*), coalesce(sum(octet_length(event)), 0) from event_logs"
_CONNECTIONS = "select count(*) from pg_stat_activity where datname = %s"
_TYPES = """
select coalesce(dagster_event_type, 'a log line'), count(*), sum(octet_length(event))
from event_logs group by 1 order by 3 desc
"""
_JOBS = """
select pipeline_name, count(*), sum(octet_length(event))
from event_logs join runs using (run_id) group by 1 order by 1
"""


def stored(database: PostgresDatabase) -> dict[str, Any]:
    """Rows and bytes: of the events as text, and of each table on the disk, with its indices."""
    [(events, text)] = database.run(_EVENTS)
    sizes = dict(database.run(_SIZES))
    [(connections,)] = database.run(_CONNECTIONS, database.name)
    return {
        "events": int(events),
        "event_text_bytes": int(text),
        "disk_bytes": int(sum(sizes.values())),
        "tables": {name: int(size) for name, size in sizes.items() if size > 32 * 1024},
        "connections": int(connections),
    }


def contents(database: PostgresDatabase) -> dict[str, Any]:
    """Rows of each table, events by their type and by the job of their run."""
    return {
        "rows": {
            name: int(database.run(f'select count(*) from "{name}"')[0][0])
            for name, _ in database.run(_SIZES)
        },
        "by_type": {name: [int(n), int(size)] for name, n, size in database.run(_TYPES)},
        "by_job": {name: [int(n), int(size)] for name, n, size in database.run(_JOBS)},
    }


def ticks(instance: dg.DagsterInstance) -> dict[str, Any]:
    """All ticks of all sensors: how many, how they ended, seconds each took."""
    found = [
        tick
        for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
    ]
    took = sorted(
        tick.end_timestamp - tick.timestamp for tick in found if tick.end_timestamp is not None
    )
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else []
    return {
        "count": len(found),
        "status": dict(Counter(tick.status.value for tick in found)),
        "said": dict(Counter(_verdict(tick) for tick in found)),
        "seconds": [[round(tick.timestamp, 1), tick.end_timestamp and
                     round(tick.end_timestamp - tick.timestamp, 3)] for tick in found],
        **({"p50_s": cuts[49], "p95_s": cuts[94], "p99_s": cuts[98], "max_s": took[-1]}
           if cuts else {}),
    }  # fmt: skip


def runs(instance: dg.DagsterInstance) -> list[dict[str, Any]]:
    """Job, status, and when it was made, started and ended, in seconds since 1970."""
    return [
        {
            "job": record.dagster_run.job_name,
            "status": record.dagster_run.status.value,
            "created": record.create_timestamp.timestamp(),
            "started": record.start_time,
            "ended": record.end_time,
        }
        for record in instance.get_run_records(ascending=True)
    ]


def _verdict(tick: Any) -> str:
    if tick.run_ids or tick.run_keys:
        return "requested a run"
    return str((tick.skip_reason or tick.status.value).partition(":")[0])
