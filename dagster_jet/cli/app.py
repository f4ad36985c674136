"""Commands that show and control the jobs of a store. Only `run` and `plan` start Spark.

Exit codes: 0 success, 1 negative result (unsafe store, failed job), 2 wrong call or store.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagster_jet.cli.doctor import doctor
from dagster_jet.cli.job_report import show_job
from dagster_jet.cli.known_job import known_job, unknown_job
from dagster_jet.cli.options import Target, on_store
from dagster_jet.cli.output import say, show, show_json, when
from dagster_jet.cli.probe import probe
from dagster_jet.cli.profile_table import show_profile
from dagster_jet.cli.run_command import DroppedOption, RenamedOption, command, names_of, run
from dagster_jet.cli.snapshot_commands import ask_for_export, exports, snapshots
from dagster_jet.cli.store_commands import store_app
from dagster_jet.cli.top import top
from dagster_jet.cli.warm_up import warm_up
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import JetError, JobFailedError
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause

if TYPE_CHECKING:
    from dagster_jet.jobs.deletion import JobDeletion
    from dagster_jet.jobs.job import Job

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(store_app, name="store")
app.command()(run)
app.command()(warm_up)
app.command()(snapshots)
app.command()(exports)
app.command()(probe)
app.command()(doctor)
app.command()(top)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib import metadata

        print(f"dagster-jet {metadata.version('dagster-jet')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version."),
    ] = False,
) -> None:
    """Runs, shows and controls streaming jobs and their store."""


JobArgument = Annotated[str, typer.Argument(help="The job's name.")]


class Action(str, Enum):
    SHOW = "show"
    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    COMPLETE = "complete"
    CANCEL = "cancel"
    EXPORT = "export"
    CANCEL_AND_EXPORT = "cancel_and_export"
    DELETE = "delete"
    RESET = "reset"


@app.command()
@on_store
def jobs(target: Target) -> None:
    """Lists all jobs that ever ran in this store."""
    with target.open_jet() as jet:
        show([_job_row(record) for record in jet.jobs()], title="Jobs", as_json=target.as_json)


@app.command()
@on_store
def job(
    target: Target,
    name: JobArgument,
    action: Annotated[Action, typer.Argument()] = Action.SHOW,
    wait: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to wait until the request is carried out; 0: do not wait."
        ),
    ] = 60,
    export_name: Annotated[
        str | None, typer.Option("--name", help="Name of the snapshot to be exported.")
    ] = None,
    release_sinks: Annotated[
        bool,
        typer.Option(
            "--release-sinks/--keep-marks",
            help="With delete: whether its marks in the places of its sinks go as well.",
        ),
    ] = True,
    remove_output: Annotated[
        bool,
        typer.Option(
            "--remove-output",
            help="With delete and reset: also remove its files, and rows of tables with owns=.",
        ),
    ] = False,
) -> None:
    """Shows one job and why it produces no output, or asks it to suspend, resume, restart, shut
    down, complete or cancel, or to export a snapshot under a name (--name).

    A suspended job is not started by its supervisor or its schedule until it is resumed. delete
    removes the stored data of a job that does not run, and its marks in the places of its sinks;
    its output stays. reset does the same, and the next start reads all input from the beginning:
    remove the output first, or write to other places.
    """

    from dagster_jet.observe.reading.explanation import explain
    from dagster_jet.ownership.supervision import read_supervision

    with target.open_jet() as jet:
        asked = jet.job(name)
        if action is Action.DELETE:
            _show_deleted(
                asked.delete(release_sinks=release_sinks, remove_output=remove_output), target
            )
            return
        if action is Action.RESET:
            _show_deleted(asked.reset(remove_output=remove_output), target)
            return
        if action in (Action.EXPORT, Action.CANCEL_AND_EXPORT):
            cancels = action is Action.CANCEL_AND_EXPORT
            ask_for_export(jet, name, export_name, wait, cancels, target)
            return
        if action is not Action.SHOW:
            _ask(known_job(jet, name), action, wait)
        record = asked.record()
        if record is None:
            raise unknown_job(jet, name)
        supervision = read_supervision(jet.store, name)
        intent = supervision.intent.value if supervision is not None else None
        row = {**_job_row(record), "intent": intent}
        show_job(row, explain(jet.store, record, name), as_json=target.as_json)
        is_as_asked = action is Action.CANCEL and record.cause is StopCause.CANCEL
        if record.status is JobStatus.FAILED and not is_as_asked:
            raise typer.Exit(1)


def _show_deleted(deleted: JobDeletion, target: Target) -> None:
    row = {
        "job": deleted.job,
        "entries": deleted.entries,
        "released": ", ".join(deleted.released),
        "kept": "; ".join(f"{sink}: {why}" for sink, why in deleted.kept.items()),
    }
    show([row], title=f"Deleted {deleted.job}", as_json=target.as_json)


def _ask(asked: Job, action: Action, seconds: float) -> None:
    try:
        if action is Action.RESUME:
            asked.resume()
        elif action is Action.SUSPEND:
            asked.suspend(seconds)
        else:
            asked.request_stop(StopKind(action.value))
            if action is not Action.RESTART:
                asked.result(seconds)
    except TimeoutError:
        if seconds == 0:
            return
        raise JetError(
            f"the request is saved in the store, but after {seconds:g} s the job is still "
            f"{asked.status.value}.",
            job=asked.name,
        ) from None
    except JobFailedError as error:
        raise JetError(f"it was not carried out: {error.message}", job=asked.name) from None


@app.command()
@on_store
def ledger(target: Target, name: JobArgument) -> None:
    """Shows the last committed epoch of every sink, by the sink's own markers.

    Up to the smallest of these epochs the sinks are consistent with each other. `decided` is the
    epoch that a sink will have. `said_by` is `record` if the sink cannot be asked. A table of a
    lake has the query of the version that it has now; `--json` also shows its files, rows, bytes
    and columns.
    """

    with target.open_jet() as jet:
        found = known_job(jet, name).ledger()
        rows = [
            {
                "sink": entry.sink,
                "epoch": entry.epoch_id,
                "decided": entry.decided_epoch_id,
                "said_by": entry.origin.value,
                "note": entry.note,
                **(
                    {"output": entry.output}
                    if target.as_json
                    else {"time_travel": entry.output.get("time_travel")}
                ),
            }
            for entry in found.entries.values()
        ]
        epoch_id = found.consistent_epoch
        upto = "nothing is committed" if epoch_id is None else f"one cut up to {epoch_id}"
        show(rows, title=f"Ledger of {name}: {upto}", as_json=target.as_json)


@app.command()
@on_store
def consumed(
    target: Target,
    name: JobArgument,
    source: Annotated[str, typer.Argument(help="Name of a source that reads files.")],
) -> None:
    """Lists the input files that a committed snapshot has read; they may be deleted."""
    with target.open_jet() as jet:
        rows = [{"file": path} for path in known_job(jet, name).consumed_files(source)]
        show(rows, title=f"Consumed by {source} of {name}", as_json=target.as_json)


@app.command()
@on_store
def watermarks(target: Target, name: JobArgument) -> None:
    """Shows the stages' event time at the last snapshot, and what holds it back since when."""
    with target.open_jet() as jet:
        saved = known_job(jet, name).manifest().watermarks
        rows = []
        for stage, reached_ms in saved.get("reached_ms", {}).items():
            held = saved.get("held_back_by", {}).get(stage) or {}
            since_ms = held.get("since_ms")
            rows.append(
                {
                    "stage": stage,
                    "watermark": None if reached_ms is None else when(reached_ms),
                    "held_back_by": held.get("source"),
                    "partition": held.get("partition"),
                    "since": None if since_ms is None else when(since_ms),
                }
            )
        show(rows, title=f"Watermarks of {name}", as_json=target.as_json)


@app.command()
@on_store
def profile(target: Target, name: JobArgument) -> None:
    """Shows how the time of the job's last epochs was spent, by phase, wherever the job runs."""
    with target.open_jet() as jet:
        found = known_job(jet, name).profile()
    if target.as_json:
        show_json(found.to_json())
    else:
        show_profile(found)


@app.command()
@on_store
def plan(
    target: Target,
    pipeline: Annotated[
        str,
        typer.Argument(
            help="The pipeline, as package.module:name; a function is called without arguments."
        ),
    ],
    snapshot: Annotated[
        str | None,
        typer.Option(
            help="Id of a retained snapshot, or name of an exported one; default: the newest."
        ),
    ] = None,
    renamed: RenamedOption = [],  # noqa: B006 - Typer reads it
    dropped_state: DroppedOption = [],  # noqa: B006
) -> None:
    """Shows how a changed pipeline would use the state of a snapshot (by default the last), and the
    strongest guarantee of its sources and sinks.

    Exit code 1: the job would not start, because some state cannot be used, or a folder belongs to
    the former name of a sink. Then the command with which it starts is shown.
    """

    from dagster_jet.pipeline.reference import load_pipeline

    found = load_pipeline(pipeline)
    with target.open_jet() as jet:
        changes = jet.plan(
            found, snapshot=snapshot, renamed=names_of(renamed), dropped_state=dropped_state
        )
        gives = jet.guarantees(found)
    rows = [_plan_row(c.stage, c.kind, gives, c.change.value, c.reason) for c in changes]
    with_state = {change.stage for change in changes}
    rows += [_plan_row(name, "sink", gives) for name in gives if name not in with_state]
    show(rows, title=f"Plan of {found.name}", as_json=target.as_json)
    words = changes.needs.renamed.keys() - names_of(renamed).keys()
    if words or any(change.is_refused for change in changes):
        if not target.as_json:
            say(f"It would not start. It starts so:\n\n    {command(pipeline, changes.needs)}")
        raise typer.Exit(1)


def _plan_row(
    stage: str,
    kind: str,
    guarantees: Mapping[str, Guarantee],
    state: str | None = None,
    reason: str = "",
) -> dict[str, Any]:
    guarantee = guarantees.get(stage)
    return {
        "stage": stage,
        "kind": kind,
        "state": state,
        "reason": reason,
        "guarantee": None if guarantee is None else guarantee.value,
    }


def _job_row(record: ExecutionRecord) -> dict[str, Any]:
    lease, snapshot = record.lease, record.snapshot
    return {
        "job": record.job,
        "status": record.status.value,
        "execution": record.execution_id,
        "restarts": record.restarts,
        "snapshot": snapshot.snapshot_id if snapshot else None,
        "epoch": snapshot.epoch_id if snapshot else None,
        "taken": when(snapshot.taken_at_ms) if snapshot else None,
        "owner": f"{lease.host}:{lease.pid}" if lease else None,
        "doing": str(lease.activity) if lease and lease.activity else None,
        "cause": record.cause.value if record.cause else None,
        "failure": record.failure,
    }
