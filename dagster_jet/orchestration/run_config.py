"""Run config of a pipeline's op: the fields that the launchpad offers, and how a run reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import dagster as dg

from dagster_jet.pipeline import Pipeline

RunContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext

_MADE_UP_JOBS = ("__ASSET_JOB", "__ephemeral_asset_job__")

UNTIL = "until"
"""Field that says when a run ends."""
_ANEW = "anew"
"""Field of a partition's run: recompute instead of continuing earlier work."""
_START_FIELDS = {
    "initial_snapshot": dg.Field(
        dg.Any,
        is_required=False,
        description="Id of a retained snapshot to go back to, or name of an exported snapshot to "
        "begin with. It happens once: another run with the same value continues from the newest "
        "snapshot.",
    ),
    "accept_loss": dg.Field(
        bool,
        is_required=False,
        description="Continue although a sink has lost staged rows, or input has disappeared.",
    ),
    "refused_to_dead_letters": dg.Field(
        bool,
        is_required=False,
        description="Commit without the decided rows that a sink refuses, and send these to its "
        "dead-letter sink.",
    ),
}
"""Options of one start, as in `Jet.run`."""

STREAM_SCHEMA = {
    UNTIL: dg.Field(
        str,
        is_required=False,
        description='When the run ends: "stopped" (when it is cancelled), "drained" (when it has '
        'read the available input), "completed" (when the input has ended and all '
        'windows are closed), or a duration such as "10 minutes". The default is '
        '"stopped"; for a run without a job of its own, as after "Materialize all", '
        'it is "drained".',
    ),
    **_START_FIELDS,
}
PARTITION_SCHEMA = {
    UNTIL: dg.Field(
        str,
        default_value="completed",
        description='When the run ends: "completed" (all input of the partition is read, all '
        'windows are closed), "drained" (windows stay open for more), or a duration.',
    ),
    _ANEW: dg.Field(
        bool,
        default_value=False,
        description="Compute the partition from its beginning, as a new job. First remove its "
        "rows from the sinks: a sink that still has them refuses to start, or would "
        "have them twice.",
    ),
    **_START_FIELDS,
}


def until_in(context: RunContext) -> str | None:
    """Returns when the run is to end; None if the run config does not say it."""
    until = _fields(context).get(UNTIL)
    return until if isinstance(until, str) else None


def is_made_up(context: RunContext) -> bool:
    """Whether Dagster made up the run's job, as for "Materialize all" and `dg.materialize`."""
    return context.run.job_name.startswith(_MADE_UP_JOBS)


def default_until(context: RunContext, pipeline: Pipeline) -> str:
    """Returns when a run ends that does not say it: "drained" in a job that Dagster made up, since
    such a run must end, else "stopped"."""
    if not is_made_up(context):
        return "stopped"
    context.log.info(
        f"{pipeline.name!r} reads the available input and ends, because this run does not belong "
        "to a job of build_jet_job. To run it as a stream, launch such a job, or set the op "
        "config until: stopped."
    )
    return "drained"


def is_anew(context: RunContext) -> bool:
    """Whether a partition's run is to recompute."""
    return bool(_fields(context).get(_ANEW))


def start_options(context: RunContext, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `Jet.submit` for one start: the run config's, unless `given` has one.

    Args:
        context: of the run.
        given: options of the code, by name; None or False: left to the run config.
    """
    fields = _fields(context)
    options = {name: fields[name] for name in _START_FIELDS if fields.get(name) is not None}
    said = {n: value for n, value in given.items() if value is not None and value is not False}
    return options | said


def op_context(context: RunContext) -> dg.OpExecutionContext:
    if isinstance(context, dg.AssetExecutionContext):
        return context.op_execution_context
    return context


def _fields(context: RunContext) -> Mapping[str, Any]:
    config = op_context(context).op_config
    return config if isinstance(config, Mapping) else {}
