"""Commands that show, compare and export snapshots."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_jet.cli.known_job import known_job
from dagster_jet.cli.options import Target, on_store
from dagster_jet.cli.output import say, show, show_json, size, when
from dagster_jet.errors import ConfigurationError, JetError

if TYPE_CHECKING:
    from dagster_jet.exports.export import Export
    from dagster_jet.jet import Jet
    from dagster_jet.jobs.job import Job
    from dagster_jet.operators.state_difference import StateDifference
    from dagster_jet.snapshot.manifest import Manifest

_ROWS_SHOWN = 20


class SnapshotAction(str, Enum):
    LIST = "list"
    SHOW = "show"
    DIFF = "diff"
    DELETE = "delete"


_ARGUMENTS = {
    SnapshotAction.LIST: 0,
    SnapshotAction.SHOW: 1,
    SnapshotAction.DIFF: 2,
    SnapshotAction.DELETE: 1,
}


@on_store
def snapshots(
    target: Target,
    name: Annotated[str, typer.Argument(help="The job's name.")],
    action: Annotated[SnapshotAction, typer.Argument()] = SnapshotAction.LIST,
    which: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of retained snapshots, or names of exported ones."),
    ] = None,
    stage: Annotated[
        str | None, typer.Option(help="Show only the state rows of this stage.")
    ] = None,
) -> None:
    """Lists the snapshots of a job, retained (newest first) and exported; shows one (show ID),
    compares two (diff A B), or deletes an exported one (delete NAME).

    With --stage, `show` prints the stage's rows and `diff` the rows that differ.
    """
    given = which or []
    if len(given) != _ARGUMENTS[action]:
        raise ConfigurationError(
            f"'{action.value}' takes {_ARGUMENTS[action]} snapshots, {len(given)} are given.",
            cure="Use 'dagster-jet snapshots JOB (list | show ID | diff A B | delete NAME)'.",
        )
    with target.open_jet() as jet:
        # Exported snapshots outlive their job.
        if not any(one.job == name or one.name in given for one in jet.exports()):
            known_job(jet, name)
        match action:
            case SnapshotAction.LIST:
                _list(jet, name, target)
            case SnapshotAction.SHOW:
                _show(jet.job(name), given[0], stage, target)
            case SnapshotAction.DIFF:
                _diff(jet.job(name), given[0], given[1], stage, target)
            case SnapshotAction.DELETE:
                _delete(jet, name, given[0], target)


@on_store
def exports(target: Target) -> None:
    """Lists the exported snapshots of all jobs, by name."""
    with target.open_jet() as jet:
        rows = [export_row(export) for export in jet.exports()]
        show(rows, title="Exported snapshots", as_json=target.as_json)


def ask_for_export(
    jet: Jet, job: str, export_name: str | None, seconds: float, cancels: bool, target: Target
) -> None:
    """Requests an export of a job's snapshot, waits for it and prints it. With 0 seconds it does
    not wait, and prints the export as it is in the list."""
    if export_name is None:
        raise ConfigurationError("the export has no name.", job=job, cure="Give one with --name.")
    asked = jet.job(job)
    ask = asked.cancel_and_export_snapshot if cancels else asked.export_snapshot
    try:
        export = ask(export_name, seconds)
    except TimeoutError as late:
        if seconds > 0:
            raise JetError(
                f"the request is in the store, but not carried out after {seconds:g} s: {late}.",
                cure="See 'dagster-jet exports'.",
            ) from None
        export = next(one for one in jet.exports() if one.name == export_name)
    show([export_row(export)], title=f"Export of {job}", as_json=target.as_json)


def export_row(export: Export) -> dict[str, Any]:
    """Returns the table row of an export."""
    return {
        "export": export.name,
        "job": export.job,
        "state": export.state.value,
        "snapshot": export.snapshot_id,
        "epoch": export.epoch_id,
        "taken": when(export.ref.taken_at_ms) if export.ref is not None else None,
        "exported": when(export.exported_at_ms) if export.is_done else None,
        "bytes": export.bytes if export.is_done else None,
        "failure": export.failure,
    }


def _list(jet: Jet, name: str, target: Target) -> None:
    rows: list[dict[str, Any]] = [
        {
            "snapshot": ref.snapshot_id,
            "epoch": ref.epoch_id,
            "execution": ref.execution_id,
            "taken": when(ref.taken_at_ms),
            "state_bytes": ref.state_bytes,
            "committed": ref.committed,
            "export": None,
        }
        for ref in jet.job(name).snapshots()
    ]
    rows += [
        {
            "snapshot": one.snapshot_id,
            "epoch": one.epoch_id,
            "execution": one.ref.execution_id if one.ref is not None else None,
            "taken": when(one.ref.taken_at_ms) if one.ref is not None else None,
            "state_bytes": one.bytes,
            "committed": True,
            "export": one.name,
        }
        for one in jet.exports()
        if one.job == name and one.is_done
    ]
    show(rows, title=f"Snapshots of {name}", as_json=target.as_json)


def _show(job: Job, wanted: str, stage: str | None, target: Target) -> None:
    from dagster_jet.operators.rows.far_times import python_rows  # loads Arrow

    manifest = job.manifest(wanted)
    if stage is not None:
        table = job.read_state(stage, snapshot=wanted)
        rows = [_plain(row) for row in python_rows(table)] if table is not None else []
        _show_rows(rows, f"{stage} in snapshot {wanted} of {job.name}", target)
        return
    if target.as_json:
        show_json(_document(manifest))
        return
    say(
        f"Snapshot {manifest.snapshot_id} of {job.name}: epoch {manifest.epoch_id}, execution "
        f"{manifest.execution_id}, timeline {manifest.timeline}, {size(manifest.state_bytes)}."
    )
    show(_state_rows(manifest), title="State", as_json=False)
    positions = [
        {"source": source, "position": json.dumps(position)}
        for source, position in manifest.sources.items()
    ]
    show(positions, title="Positions", as_json=False)
    if manifest.tables:
        versions = [
            {
                "stage": stage,
                "table": json.dumps(note["table"]),
                "version": json.dumps(note["version"]),
            }
            for stage, note in manifest.tables.items()
        ]
        show(versions, title="Tables", as_json=False)


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "job": manifest.job,
        "snapshot": manifest.snapshot_id,
        "epoch": manifest.epoch_id,
        "execution": manifest.execution_id,
        "timeline": manifest.timeline,
        "completed": manifest.completed,
        "sources": manifest.sources,
        "tables": manifest.tables,
        "state": _state_rows(manifest),
        "watermarks": manifest.watermarks.get("reached_ms", {}),
    }


def _state_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Counts rows as saved: several may be parts of one row, and some may have expired."""
    return [
        {
            "stage": vertex,
            "kind": manifest.plan.get(vertex, {}).get("kind"),
            "shards": len(chains),
            "saved_rows": sum(one.rows for chain in chains for one in chain),
            "bytes": sum(one.bytes for chain in chains for one in chain),
        }
        for vertex, chains in sorted(manifest.shards.items())
    ]


def _diff(job: Job, before: str, after: str, stage: str | None, target: Target) -> None:
    from dagster_jet.operators.rows.far_times import python_rows  # loads Arrow

    found = job.diff(before, after, stage)
    if stage is None:
        rows = [_counts(one) for one in found]
        title = f"From snapshot {before} to {after} of {job.name}"
        show(rows, title=title, as_json=target.as_json)
        return
    sides: Sequence[tuple[str, Callable[[StateDifference], Any]]] = (
        ("added", lambda one: one.added),
        ("removed", lambda one: one.removed),
        ("changed", lambda one: one.changed),
    )
    changes: list[dict[str, Any]] = []
    for one in found:
        for side, table_of in sides:
            for row in python_rows(table_of(one)):
                content = {key: row.pop(key) for key in ("before", "after") if side == "changed"}
                before_after = {k: _text(v, target) for k, v in content.items()}
                changes.append({"change": side, **_plain(row), **before_after})
    _show_rows(changes, f"{stage} from snapshot {before} to {after} of {job.name}", target)


def _counts(one: StateDifference) -> dict[str, Any]:
    return {
        "stage": one.stage,
        "added": one.added.num_rows,
        "removed": one.removed.num_rows,
        "changed": one.changed.num_rows,
    }


def _delete(jet: Jet, name: str, wanted: str, target: Target) -> None:
    present = next((one for one in jet.exports() if one.name == wanted), None)
    if present is not None and present.job != name:
        raise JetError(
            f"the exported snapshot {wanted!r} belongs to job {present.job!r}.", job=name
        )
    jet.delete_export(wanted)
    if target.as_json:
        show_json({"deleted": wanted})
    else:
        say(f"The exported snapshot {wanted!r} is deleted.")


def _show_rows(rows: list[dict[str, Any]], title: str, target: Target) -> None:
    """Prints the rows; a table has only the first rows, but the columns of all."""
    if target.as_json:
        show_json(rows)
        return
    names = dict.fromkeys(key for row in rows for key in row)
    shown = [{key: row.get(key) for key in names} for row in rows[:_ROWS_SHOWN]]
    more = f", the first {_ROWS_SHOWN} of {len(rows)}" if len(rows) > _ROWS_SHOWN else ""
    show(shown, title=f"{title}{more}", as_json=False)


def _text(value: Any, target: Target) -> Any:
    plain = _plain(value)
    return plain if target.as_json else json.dumps(plain, default=str)


def _plain(value: Any) -> Any:
    """Converts what JSON does not have: bytes to hexadecimal text, and NaN and infinite numbers to
    the text that Spark writes for them."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value
