"""A tick's look at a healthy run that should end: it is too old, or its definition is."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import JobStateError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.defined_pipeline import assets_in
from dagster_jet.orchestration.retirement import Retirement, retire
from dagster_jet.orchestration.sightings import ObjectKind, WatchedObject
from dagster_jet.snapshot.record import ExecutionRecord

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@dataclass(frozen=True)
class DefinitionCheck:
    """Result of a check of the definition that runs.

    Attributes:
        text: to append to the tick's text; may be empty.
        events: observations to store: once per execution, that it runs an older definition.
        marks: to remember until the next tick.
    """

    text: str = ""
    events: tuple[dg.AssetObservation, ...] = ()
    marks: tuple[WatchedObject, ...] = ()


def check_definition(
    context: dg.SensorEvaluationContext,
    jet: Jet,
    retirement: Retirement,
    record: ExecutionRecord,
    marks: Collection[WatchedObject],
    *,
    is_well: bool,
    reason: tuple[str | None, str | None],
    standby_comes: bool,
) -> DefinitionCheck:
    """Ends the run in favour of the next one if it is due, and says what is outdated.

    Args:
        context: context of the tick.
        jet: gives access to the store.
        retirement: conditions under which a run retires.
        record: record of the execution that has the job.
        marks: what earlier ticks have remembered about the definition that is loaded.
        is_well: whether the execution makes progress; one that is stuck is not ended.
        reason: what `Retirement.reason` says.
        standby_comes: a standby will soon wait, and the end of the run is put off until then.

    Raises:
        StoreError: the store could not be read.
    """
    text, found = "", [mark for mark in marks if mark.kind is ObjectKind.RETIRED]
    why, obstacle = reason
    mark = WatchedObject(ObjectKind.RETIRED, f"{record.execution_id} {retirement.definition}")
    follows = retirement.is_to_follow(record)
    if obstacle is not None:
        context.log.error(f"{record.job}: {obstacle}")
        text = f"; {obstacle}"
    elif why is not None and follows and found and mark not in found:
        text = (
            f"; {why}, and a run that was started since has the other definition, too: its process "
            "loads other code than this code location. Reload the definitions"
        )
    elif why is not None and is_well and standby_comes:
        text = f"; {why}: the run is asked to end once its standby waits"
    elif why is not None and is_well:
        context.log.info(f"{record.job}: {why}; the next run continues from its terminal snapshot")
        with suppress(JobStateError):  # it has just ended
            retire(jet, record)
        text = f"; {why}: the run was asked to end so that the next run can start"
        found = [mark] if follows else found
    elif retirement.is_outdated(record):
        text = (
            "; it runs an older definition of the pipeline than the one that is loaded. Shut it "
            'down to start the new one, or set follow_definition="whole"'
        )
    if not retirement.is_outdated(record):
        return DefinitionCheck(text, marks=tuple(found))
    said = WatchedObject(ObjectKind.OUTDATED, mark.identity)
    facts = {keys.OLDER_DEFINITION: dg.MetadataValue.bool(True)}
    assets = assets_in(context.repository_def, record.job) if said not in marks else None
    shown = sorted(assets.keys) if assets is not None else ()
    events = tuple(dg.AssetObservation(key, metadata=facts) for key in shown)
    return DefinitionCheck(text, events, (*found, said))
