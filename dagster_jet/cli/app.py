"""Commands that look at and steer the jobs of a store. None of them starts Spark.

Exit codes: 0 done, 1 the answer is no (unsafe store, job failed), 2 the call or the store is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from functools import wraps
from typing import Annotated, Any

import typer

from dagster_jet.cli.output import show
from dagster_jet.engine.lease import looks_held, wall_clock_ms
from dagster_jet.errors import JetError
from dagster_jet.jet import Jet
from dagster_jet.remote_job import RemoteJob
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

app = typer.Typer(
    no_args_is_help=True,
    help="Look at and steer streaming jobs and their store.",
    pretty_exceptions_enable=False,
)
store_app = typer.Typer(no_args_is_help=True, help="The replicated store.")
app.add_typer(store_app, name="store")

StoreOption = Annotated[
    list[str],
    typer.Option(
        "--store",
        "-s",
        envvar="DAGSTER_JET_STORE",
        help="Member URL; once per member, or separated by spaces in DAGSTER_JET_STORE.",
    ),
]
NamespaceOption = Annotated[str, typer.Option("--namespace", envvar="DAGSTER_JET_NAMESPACE")]
BackupOption = Annotated[int, typer.Option("--backup-count", envvar="DAGSTER_JET_BACKUP_COUNT")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document.")]
JobArgument = Annotated[str, typer.Argument(help="The job's name.")]


class Action(str, Enum):
    """What can be asked of a job."""

    SHOW = "show"
    SUSPEND = "suspend"
    RESTART = "restart"
    COMPLETE = "complete"
    CANCEL = "cancel"


def _plain_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except JetError as error:
            print(f"dagster-jet: {error}", file=sys.stderr)
            raise typer.Exit(2) from None

    return run


@contextmanager
def _open(store: list[str], namespace: str, backup_count: int) -> Iterator[Jet]:
    urls = [url for text in store for url in text.split()]
    with Jet(store=urls, namespace=namespace, backup_count=backup_count) as jet:
        yield jet


@app.command()
@_plain_errors
def jobs(
    store: StoreOption,
    namespace: NamespaceOption = "default",
    backup_count: BackupOption = 1,
    json: JsonOption = False,
) -> None:
    """All jobs that ever ran here."""
    with _open(store, namespace, backup_count) as jet:
        show([_job_row(record) for record in jet.jobs()], title="Jobs", as_json=json)


@app.command()
@_plain_errors
def job(
    name: JobArgument,
    store: StoreOption,
    action: Annotated[Action, typer.Argument()] = Action.SHOW,
    namespace: NamespaceOption = "default",
    backup_count: BackupOption = 1,
    json: JsonOption = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for it to happen.")] = 60,
) -> None:
    """Shows one job, or asks it to suspend, restart, complete or cancel."""
    with _open(store, namespace, backup_count) as jet:
        if action is not Action.SHOW:
            jet.request(name, StopKind(action.value))
            if action is not Action.RESTART:
                _await_end(jet, name, wait)
        record = jet.record(name)
        if record is None:
            raise JetError(
                "no job of this name ever ran here.", job=name, cure="See 'dagster-jet jobs'."
            )
        show([_job_row(record)], title=f"Job {name}", as_json=json)
        if record.status is JobStatus.FAILED:
            raise typer.Exit(1)


def _await_end(jet: Jet, name: str, seconds: float) -> None:
    remote = RemoteJob(jet.store, name)
    try:
        remote.join(seconds)
    except TimeoutError:
        raise JetError(
            f"the request is in the store, but after {seconds:g} s the job is still "
            f"{remote.status.value}.",
            job=name,
        ) from None


@app.command()
@_plain_errors
def snapshots(
    name: JobArgument,
    store: StoreOption,
    namespace: NamespaceOption = "default",
    backup_count: BackupOption = 1,
    json: JsonOption = False,
) -> None:
    """The retained snapshots of a job, newest first."""
    with _open(store, namespace, backup_count) as jet:
        rows = [
            {
                "snapshot": ref.snapshot_id,
                "epoch": ref.epoch_id,
                "execution": ref.execution_id,
                "taken": _when(ref.taken_at_ms),
                "state_bytes": ref.state_bytes,
                "committed": ref.committed,
            }
            for ref in jet.snapshots(name)
        ]
        show(rows, title=f"Snapshots of {name}", as_json=json)


@app.command()
@_plain_errors
def ledger(
    name: JobArgument,
    store: StoreOption,
    namespace: NamespaceOption = "default",
    backup_count: BackupOption = 1,
    json: JsonOption = False,
) -> None:
    """The last committed epoch of every sink."""
    with _open(store, namespace, backup_count) as jet:
        rows = [{"sink": sink, "epoch": epoch} for sink, epoch in jet.ledger(name).items()]
        show(rows, title=f"Ledger of {name}", as_json=json)


@store_app.command("status")
@_plain_errors
def store_status(
    store: StoreOption,
    namespace: NamespaceOption = "default",
    backup_count: BackupOption = 1,
    json: JsonOption = False,
) -> None:
    """Members, whether they answer, and what they hold; exit code 1 if replicas are missing."""
    with _open(store, namespace, backup_count) as jet:
        status = jet.store.status()
        rows = [
            {
                "member": member.member_id,
                "reachable": member.reachable,
                "primaries": member.primaries,
                "backups": member.backups,
            }
            for member in status.members
        ]
        show(rows, title="Store", as_json=json)
        if not status.is_safe:
            raise typer.Exit(1)


def _job_row(record: ExecutionRecord) -> dict[str, Any]:
    lease, snapshot = record.lease, record.snapshot
    held = looks_held(lease, wall_clock_ms())
    return {
        "job": record.job,
        "status": record.status.value,
        "execution": record.execution_id,
        "restarts": record.restarts,
        "snapshot": snapshot.snapshot_id if snapshot else None,
        "epoch": snapshot.epoch_id if snapshot else None,
        "taken": _when(snapshot.taken_at_ms) if snapshot else None,
        "owner": f"{lease.host}:{lease.pid}" if lease and held else None,
        "failure": record.failure,
    }


def _when(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
