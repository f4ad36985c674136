"""Run config of a pipeline's op: the fields that the launchpad offers, and how a run reads them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeAlias

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.execution.stopping import parse_until
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.pipeline import Pipeline

RunContext: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext
Until: TypeAlias = str | timedelta

UNTIL = "until"
"""Field that says when a run ends."""
_ANEW = "anew"
"""Field of a partition's run: recompute instead of continuing earlier work."""
_ACCEPT_OLD_ROWS = "accept_old_rows"
_START_FIELDS = {
    "initial_snapshot": dg.Field(
        dg.Any,
        is_required=False,
        description="Id of a retained snapshot to go back to, or name of an exported snapshot to "
        "begin with. It happens once: another run with the same value continues from the newest "
        "snapshot.",
    ),
    "repeat_output": dg.Field(
        bool,
        is_required=False,
        description="Go back although sinks have output of later epochs, whose rows are then "
        "written again.",
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
    "dropped_state": dg.Field(
        [str],
        is_required=False,
        description="Stages and sources whose state is dropped, if the pipeline cannot use it.",
    ),
    "renamed": dg.Field(
        dg.Permissive(),  # type: ignore[no-untyped-call]
        is_required=False,
        description="Stages, sources and sinks that have another name now: present name by former "
        "name.",
    ),
}
"""Options of one start, as in `Jet.run`."""
_STANDBY = "standby"
_IF_RUNNING = "if_running"
_PROCEED, _SKIP = "proceed", "skip"

STREAM_SCHEMA = {
    UNTIL: dg.Field(
        str,
        is_required=False,
        description='When the run ends: "stopped" (when it is cancelled), "drained" (when it has '
        'read the available input), "completed" (when the input has ended and all '
        'windows are closed), or a duration such as "10 minutes". The default is '
        '"stopped" in a job that build_jet_job made, otherwise "drained", as after '
        '"Materialize all".',
    ),
    _IF_RUNNING: dg.Field(
        dg.Enum("JetIfRunning", [dg.EnumValue(_PROCEED), dg.EnumValue(_SKIP)]),
        is_required=False,
        description="If another run executes the job: proceed (the default) computes what is "
        "behind the stream in this run from the rows committed so far; skip leaves it out.",
    ),
    **_START_FIELDS,
    _STANDBY: dg.Field(
        bool,
        is_required=False,
        description="Keep Spark warm and wait until no other run has the job. Launch this run "
        "beside the one that has it.",
    ),
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
        description="Compute the partition from its beginning, as a new job. Its files are removed "
        "from files sinks first.",
    ),
    _ACCEPT_OLD_ROWS: dg.Field(
        bool,
        default_value=False,
        description="With anew: start although other sinks (tables, topics) cannot remove the "
        "partition's rows. Remove these first, or have a key replace them; otherwise they are "
        "there twice.",
    ),
    **_START_FIELDS,
}


def until_given(context: RunContext, until: Until | None) -> Until | None:
    """Returns when the run is to end: as the code says, else the run config; None if neither does.

    Raises:
        ConfigurationError: the value is neither one of the words nor a duration.
    """
    if until is None:
        field = _fields(context).get(UNTIL)
        until = field if isinstance(field, str) else None
    if until is not None:
        parse_until(until)
    return until


def is_of_stream(context: RunContext, pipeline: Pipeline) -> bool:
    """Whether the run belongs to a job that `build_jet_job` made, or a supervisor requested it."""
    return context.run.tags.get(keys.TAG_PIPELINE) == pipeline.name


def default_until(context: RunContext, pipeline: Pipeline) -> str:
    """Returns when a run ends that does not say it: "stopped" in a job of `build_jet_job`, else
    "drained": whatever is behind the stream in the run waits for its end."""
    if is_of_stream(context, pipeline):
        return "stopped"
    context.log.info(
        f"{pipeline.name!r} reads the available input and ends, because this run does not belong "
        "to a job of build_jet_job. To run it as a stream, launch such a job, or set the op "
        "config until: stopped."
    )
    return "drained"


def warn_if_endless(context: RunContext, until: Until, job: str) -> None:
    """Logs a warning if steps of the run wait for a stream that does not end."""
    if until == "stopped" and len(op_context(context).job_def.nodes) > 1:
        context.log.warning(
            f"{job!r} runs until it is stopped, so the steps behind it in this run wait for ever. "
            "Set until: drained, or launch them in runs of their own, by an automation condition "
            "or by build_jet_snapshot_sensor."
        )


def is_anew(context: RunContext) -> bool:
    """Whether a partition's run is to recompute."""
    return bool(_fields(context).get(_ANEW))


def accepts_old_rows(context: RunContext) -> bool:
    """Whether a recomputation may start although sinks keep earlier rows."""
    return bool(_fields(context).get(_ACCEPT_OLD_ROWS))


def proceeds_if_running(context: RunContext, given: str | None) -> bool:
    """Whether the run yields outputs although another run executes the job.

    Raises:
        ConfigurationError: the word is not one of the two.
    """
    said = given or _fields(context).get(_IF_RUNNING) or _PROCEED
    if said not in (_PROCEED, _SKIP):
        raise ConfigurationError(
            f"if_running: expected {_PROCEED!r} or {_SKIP!r}, not {said!r}.",
            cure="Correct it where jet.run() is called.",
        )
    return said == _PROCEED


def start_options(context: RunContext, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `Jet.submit` for one start: the run config's, unless `given` has one.

    Args:
        context: of the run.
        given: options of the code, by name; None or False: left to the run config.
    """
    fields = _fields(context)
    names = (*_START_FIELDS, _STANDBY)
    options = {name: fields[name] for name in names if fields.get(name) is not None}
    said = {n: value for n, value in given.items() if value is not None and value is not False}
    return options | said


def is_standby(context: RunContext, given: Mapping[str, Any]) -> bool:
    """Whether the run stands by: the code or the run config says so, or a supervisor's request."""
    return bool(start_options(context, given).get(_STANDBY)) or (
        context.run.tags.get(keys.TAG_KIND) == keys.KIND_STANDBY
    )


def op_context(context: RunContext) -> dg.OpExecutionContext:
    if isinstance(context, dg.AssetExecutionContext):
        return context.op_execution_context
    return context


def _fields(context: RunContext) -> Mapping[str, Any]:
    config = op_context(context).op_config
    return config if isinstance(config, Mapping) else {}
