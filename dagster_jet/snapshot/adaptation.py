"""Renames and drops of saved state that a start was given. Pure.

A restart in the same process repeats the words, so they have an effect only where the pipeline
needs them: a name that the snapshot does not have, and state that the pipeline can use, stay as
they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.plan import Change, StageChange, StagePlan, compare_plans

_BY_STAGE = ("reached_ms", "dead_until_ms", "held_back_by")
_BY_NODE = ("nodes", "partitions")
_TIMESTAMPS = ".timestamps"


@dataclass(frozen=True)
class Adaptation:
    """Words of one start about saved state."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """Present name by former name, of stages and sources."""
    dropped: frozenset[str] = frozenset()
    """Stages and sources whose saved state is dropped, if the pipeline cannot use it."""

    def plan(
        self, saved: Mapping[str, StagePlan], wanted: Mapping[str, StagePlan], job: str
    ) -> dict[str, StagePlan]:
        """Returns the plan of a snapshot as the pipeline is to see it.

        Raises:
            ConfigurationError: a state is renamed to a stage that the pipeline does not have, or
                away from one that it has; or two saved states are renamed to one stage.
        """
        self._check(saved, wanted, job)
        found = self._as_named(saved)
        gone = self._unusable(found, wanted)
        return {stage: plan for stage, plan in found.items() if stage not in gone}

    def manifest(self, manifest: Manifest, wanted: Mapping[str, StagePlan]) -> Manifest:
        """Returns the snapshot as the pipeline is to see it. Sinks and their staged output stay.

        Raises:
            ConfigurationError: as `plan`; or a dropped stage has prepared transactions.
        """
        plan = self.plan(manifest.plan, wanted, manifest.job)
        names = self._names(manifest.plan)
        gone = {stage for stage in manifest.plan if names.get(stage, stage) not in plan}
        owed = gone & set(manifest.prepared)
        if owed:
            raise ConfigurationError(
                "dropped_state: processors have prepared transactions that are decided and not "
                "committed, and only this state names them.",
                job=manifest.job,
                stage=", ".join(sorted(owed)),
                cure="Start the former pipeline once, which commits them.",
            )

        def named(values: Mapping[str, Any]) -> dict[str, Any]:
            return {names.get(n, n): value for n, value in values.items() if n not in gone}

        return replace(
            manifest,
            plan=plan,
            sources=named(manifest.sources),
            shards=named(manifest.shards),
            counters=named(manifest.counters),
            unacknowledged=named(manifest.unacknowledged),
            prepared=tuple(names.get(stage, stage) for stage in manifest.prepared),
            watermarks=_watermarks(manifest.watermarks, names, gone),
        )

    def without_effect(
        self, saved: Mapping[str, StagePlan], wanted: Mapping[str, StagePlan]
    ) -> list[str]:
        """Returns a sentence for each word that this snapshot does not need."""
        said = []
        for old, new in self.renamed.items():
            if old not in saved:
                said.append(f"renamed {old!r}: the snapshot has no state of that name")
            elif new in saved:
                said.append(f"renamed {old!r}: the snapshot has state of {new!r} already")
        found = self._as_named(saved)
        for stage in sorted(self.dropped - self._unusable(found, wanted)):
            why = "the pipeline can use its state, which stays"
            if stage not in found:
                why = "the snapshot has no state of that name"
            said.append(f"dropped_state {stage!r}: {why}")
        return said

    def and_also(self, more: Adaptation) -> Adaptation:
        """Merges two adaptations; `more` wins."""
        return Adaptation({**self.renamed, **more.renamed}, self.dropped | more.dropped)

    def _names(self, saved: Mapping[str, StagePlan]) -> dict[str, str]:
        """The renames that the snapshot needs."""
        return {old: new for old, new in self.renamed.items() if old in saved and new not in saved}

    def _as_named(self, saved: Mapping[str, StagePlan]) -> dict[str, StagePlan]:
        """The plans of a snapshot by the stages' present names."""
        names = self._names(saved)
        return {names.get(stage, stage): plan for stage, plan in saved.items()}

    def _unusable(
        self, saved: Mapping[str, StagePlan], wanted: Mapping[str, StagePlan]
    ) -> set[str]:
        refused = {change.stage for change in compare_plans(saved, wanted) if change.is_refused}
        return refused & self.dropped

    def _check(
        self, saved: Mapping[str, StagePlan], wanted: Mapping[str, StagePlan], job: str
    ) -> None:
        for old, new in self.renamed.items():
            if new not in wanted:
                raise ConfigurationError(
                    f"renamed: the pipeline has no source or stateful stage {new!r}, and no sink "
                    "of that name.",
                    job=job,
                    cure=f"It has {', '.join(wanted)}, and sinks.",
                )
            if old in wanted and old != new:
                raise ConfigurationError(
                    f"renamed: the pipeline still has {old!r}, so its state stays there.", job=job
                )
        former: dict[str, str] = {}
        for old, new in self._names(saved).items():
            if former.setdefault(new, old) != old:
                raise ConfigurationError(
                    f"renamed: the snapshot has state of {former[new]!r} and of {old!r}, and a "
                    "stage can have one of them.",
                    job=job,
                    stage=new,
                    cure="Rename one of them, and drop the other with dropped_state.",
                )


class Plan(tuple[StageChange, ...]):
    """Changes of all stages, and the words with which the pipeline can start."""

    needs: Adaptation

    def __new__(cls, changes: Iterable[StageChange], needs: Adaptation) -> Plan:
        self = super().__new__(cls, changes)
        self.needs = needs
        return self


def needed(
    changes: Iterable[StageChange],
    saved: Mapping[str, StagePlan],
    wanted: Mapping[str, StagePlan],
) -> Adaptation:
    """Returns the words with which a pipeline can start that is refused without them.

    A stage is taken to be renamed if exactly one new stage can use its state; all other state that
    the pipeline cannot use is dropped.
    """
    refused = [change for change in changes if change.is_refused]
    new = [change.stage for change in changes if change.change is Change.NEW]
    renamed: dict[str, str] = {}
    for change in refused:
        fitting = [
            stage
            for stage in new
            if stage not in renamed.values()
            and change.change is Change.DROPPED
            and compare_plans({stage: saved[change.stage]}, {stage: wanted[stage]})[0].change
            is Change.KEPT
        ]
        if len(fitting) == 1:
            renamed[change.stage] = fitting[0]
    dropped = frozenset(change.stage for change in refused if change.stage not in renamed)
    return Adaptation(renamed, dropped)


def _watermarks(
    saved: Mapping[str, Any], names: Mapping[str, str], gone: Iterable[str]
) -> dict[str, Any]:
    """Watermarks under the present names. A stage that begins empty keeps the one it has reached:
    its results up to it are there."""
    found = dict(saved)
    for part in _BY_STAGE:
        if part in saved:
            left = () if part == "reached_ms" else gone
            found[part] = {names.get(n, n): v for n, v in saved[part].items() if n not in left}
    nodes = {f"{old}{_TIMESTAMPS}": f"{new}{_TIMESTAMPS}" for old, new in names.items()}
    for part in _BY_NODE:
        if part in saved:
            found[part] = {nodes.get(n, n): value for n, value in saved[part].items()}
    return found
