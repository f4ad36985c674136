"""Dagster job whose launchpad sends requests to the streaming job.

``from __future__ import annotations`` is not used: Dagster refuses a context annotated with text.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.core.first_of import first_of
from dagster_jet.errors import ConfigurationError, JetError, JobStateError
from dagster_jet.jobs.legal_requests import JobRequest
from dagster_jet.orchestration.dagster_name import dagster_name, given_name, pipeline_name
from dagster_jet.orchestration.partition_job import jobs_of_partition, partitions_of
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.tick import required_key
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.protocol import StopKind

if TYPE_CHECKING:
    from dagster_jet.jet import Jet
    from dagster_jet.jobs.job import Job

_DELETE = "delete"
_FORM = {
    "action": dg.Field(
        dg.Enum(
            "JetAction", [dg.EnumValue(name) for name in (*(m.value for m in JobRequest), _DELETE)]
        ),
        description="suspend: take a snapshot and stop until resumed. resume: start a stopped "
        "job again. restart: begin a new execution at once. shutdown: end this run "
        "and begin a new one. complete: close all windows and end. cancel: stop "
        "without a snapshot. export: keep a snapshot under a name. "
        "cancel_and_export: take a last snapshot, keep it under a name, and stop. "
        "delete: remove the data of a job that is not running from the store.",
    ),
    "export_name": dg.Field(
        dg.Noneable(str),
        default_value=None,
        description="The name of the exported snapshot, for export and cancel_and_export.",
    ),
    "wait_seconds": dg.Field(
        float,
        default_value=60.0,
        description="Seconds to wait until the request is carried out; 0: do not wait.",
    ),
    "partitions": dg.Field(
        dg.Noneable([str]),
        default_value=None,
        description="For delete: the keys of the partitions whose jobs are deleted. Without this "
        "field, the job with the pipeline's own name is deleted.",
    ),
    "release_sinks": dg.Field(
        bool,
        default_value=True,
        description="For delete: also remove what is staged in the places of the job's sinks, and "
        "its marks there. false: leave them, for example because a place is gone.",
    ),
}


def build_jet_control_job(
    pipeline: Pipeline | str, *, jet: str = "jet", name: str | None = None
) -> dg.JobDefinition:
    """Return a Dagster job that controls a streaming job from the UI.

    It suspends, resumes, restarts, completes or cancels the stream, exports a snapshot, or deletes
    the job or its partitions' jobs. It starts no Spark and does the same as ``dagster-jet job NAME
    ...``, with the same defaults; ``reset`` and ``--remove-output`` exist only there and in Python.
    Requests reach the process that has the job through the store.

    Args:
        pipeline: the pipeline, or its name.
        jet: the key of the `JetResource` in the definitions.
        name: the job's name; by default the pipeline's name plus ``_control``.

    Raises:
        ConfigurationError: a name or the key is empty.
    """
    streaming_job = pipeline_name(pipeline)
    base = dagster_name(streaming_job)

    @dg.op(
        name=f"ask_{base}",
        config_schema=_FORM,
        required_resource_keys=required_key(jet),
        out=dg.Out(dg.Nothing),
        description=f"Sends a request to the streaming job `{streaming_job}`.",
    )
    def ask(context: dg.OpExecutionContext) -> None:
        resource: JetResource = getattr(context.resources, jet)
        form = context.op_config
        try:
            if form["action"] == _DELETE:
                keys, release = form["partitions"], form["release_sinks"]
                said = delete_jobs(resource.jet, streaming_job, keys, release_sinks=release)
            else:
                request, wait_s = JobRequest(form["action"]), form["wait_seconds"]
                said = carry_out(resource.jet, streaming_job, request, wait_s, form["export_name"])
        except (JetError, TimeoutError) as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        context.log.info(said)

    @dg.job(
        name=given_name(name, f"{base}_control"),
        description=f"Suspend, resume, restart, complete, cancel, export or delete "
        f"`{streaming_job}`.",
        executor_def=dg.in_process_executor,
    )
    def control() -> None:
        ask()

    return control


def delete_jobs(
    jet: "Jet", pipeline: str, keys: Sequence[str] | None, *, release_sinks: bool
) -> str:
    """Delete a pipeline's job, or the jobs of some partitions; return a summary sentence.

    Raises:
        JobStateError: there is no such job, then nothing is deleted; or the sinks of a job lack a
            commit, then the jobs before it are deleted.
        LeaseHeldError: a job is running; the jobs before it are deleted.
    """
    names = [pipeline] if keys is None else _jobs_of_partitions(jet, pipeline, keys)
    deleted = [jet.job(name).delete(release_sinks=release_sinks) for name in names]
    kept = [f"{one.job}, {sink}: {why}" for one in deleted for sink, why in one.kept.items()]
    said = f"deleted: {', '.join(one.job for one in deleted)}."
    return f"{said} Markers that were not removed: {'; '.join(kept)}." if kept else said


def _jobs_of_partitions(jet: "Jet", pipeline: str, keys: Sequence[str]) -> list[str]:
    """The jobs of all attempts of these partitions; each partition has at least one."""
    jobs = {key: jobs_of_partition(jet, pipeline, key) for key in keys}
    missing = [repr(key) for key, found in jobs.items() if not found]
    if missing or not jobs:
        known = [repr(key) for key in partitions_of(jet, pipeline)]
        problem = f"no job of partition {', '.join(missing)} exists" if jobs else "it is empty"
        raise JobStateError(
            f"partitions: {problem}, so nothing is deleted. There are jobs of the partitions: "
            f"{first_of(known)}.",
            job=pipeline,
            cure="List partitions that have a job. To delete the job of the stream, leave the "
            "field partitions out.",
        )
    return [name for found in jobs.values() for name in found]


def carry_out(
    jet: "Jet", job: str, request: JobRequest, wait_s: float, export_name: str | None = None
) -> str:
    """Make a request and wait for it; return the job's resulting state in a sentence.

    Args:
        jet: gives access to the store.
        job: the job's name.
        request: what the job is to do.
        wait_s: seconds to wait until the request is carried out; 0: do not wait.
        export_name: the name of an exported snapshot.

    Raises:
        ConfigurationError: an export has no name, or a name that is not valid.
        JobStateError: the request is not possible in the current state.
        TimeoutError: the request was written, but was not carried out in time.
    """
    asked = jet.job(job)
    try:
        return _carried_out(asked, request, wait_s, export_name)
    except TimeoutError:
        if wait_s > 0:
            raise
        return f"the request is in the store; {job!r} is still {asked.status.value}."


def _carried_out(asked: "Job", request: JobRequest, wait_s: float, export_name: str | None) -> str:
    if request in (JobRequest.EXPORT, JobRequest.CANCEL_AND_EXPORT):
        return _export(asked, request, wait_s, export_name)
    if request is JobRequest.RESUME:
        asked.resume()
        return f"{asked.name!r} is resumed: its supervisor or schedule starts it at the next tick."
    if request is JobRequest.SUSPEND:
        asked.suspend(wait_s)
    else:
        asked.request_stop(StopKind(request.value))
        if request is not JobRequest.RESTART:
            asked.result(wait_s)
    return f"{asked.name!r} is {asked.status.value}."


def _export(asked: "Job", request: JobRequest, wait_s: float, export_name: str | None) -> str:
    if export_name is None:
        raise ConfigurationError(
            "the exported snapshot needs a name.", job=asked.name, cure="Fill in export_name."
        )
    cancels = request is JobRequest.CANCEL_AND_EXPORT
    ask = asked.cancel_and_export_snapshot if cancels else asked.export_snapshot
    export = ask(export_name, wait_s)
    return (
        f"snapshot {export.snapshot_id} (epoch {export.epoch_id}) of {asked.name!r} is kept as "
        f"{export.name!r}; the job is {asked.status.value}."
    )
