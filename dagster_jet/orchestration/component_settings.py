"""Settings of a component's parts, as YAML has them: supervisor, checks, retries, freshness.

Dagster shows a description of a field with a default only if a `Resolver` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

import dagster as dg
from pydantic import ConfigDict

from dagster_jet.core.durations import to_ms
from dagster_jet.core.secret import Secret
from dagster_jet.orchestration.check_schedule import EVERY_HALF_HOUR


def described(description: str, *examples: Any, type: Any = None) -> dg.Resolver:
    """Returns the annotation of a field that `dg utils inspect-component` describes.

    Args:
        description: shown with the field.
        examples: values as in YAML.
        type: type of the value in YAML, if it is not the field's.
    """
    resolver: dg.Resolver = dg.Resolver.default(
        description=description, examples=list(examples), model_field_type=type
    )
    return resolver


class SupervisorSettings(dg.Model, dg.Resolvable):
    """Settings of the supervisor sensor; defaults are those of `build_jet_supervisor_sensor`."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[
        Literal["stopped", "running"],
        described("Whether the sensor is on when it is first loaded.", "running"),
    ] = "stopped"
    minimum_interval_seconds: Annotated[int | None, described("Seconds between two ticks.", 30)] = (
        None
    )
    start_timeout_seconds: Annotated[
        float | None,
        described("Seconds that a requested run may take until it runs the job.", 180),
    ] = None
    backoff_initial_seconds: Annotated[
        float | None,
        described("The first pause after a run without progress; it doubles.", 10),
    ] = None
    backoff_max_seconds: Annotated[
        float | None, described("The longest pause between two runs without progress.", 300)
    ] = None
    give_up_after: Annotated[
        int | None,
        described(
            "Number of runs in a row without progress after which the supervisor gives up; the "
            "checks use it, too.",
            8,
        ),
    ] = None
    stuck_after_seconds: Annotated[
        float | None,
        described(
            "Seconds that a job may spend in one activity before it counts as stuck; the checks "
            "use it, too.",
            300,
        ),
    ] = None
    max_run_age_seconds: Annotated[
        float | None,
        described(
            "Maximum age of a run: an older run ends with a snapshot, and the next run continues.",
            86_400,
        ),
    ] = None
    follow_definition: Annotated[
        Literal["off", "stages", "whole", False] | None,
        described(
            "Which differences between the loaded pipeline and the running one end a run, so that "
            "the next one follows: none, those of the stages and their state (the default), or "
            "also those of expressions, connectors, settings and functions.",
            "whole",
        ),
    ] = None

    standby: Annotated[
        bool | None,
        described(
            "Whether one more run stands by, with a warm Spark, and takes over when the run that "
            "has the job dies or retires. It takes the memory of an idle Spark and a slot of the "
            "run queue.",
            True,
        ),
    ] = None

    def given(self, *names: str) -> dict[str, Any]:
        """Returns the settings that were given, restricted to `names` unless it is empty."""
        found = self.model_dump(exclude={"status"}, include=set(names) or None, exclude_none=True)
        return _with_off(found, "follow_definition")


class CheckSettings(dg.Model, dg.Resolvable):
    """Settings of the asset checks; defaults are those of `build_jet_asset_checks`."""

    model_config = ConfigDict(extra="forbid")

    schedule: Annotated[
        str | None,
        described(
            "A cron schedule of the checks. It is on when it is first loaded if the supervisor is, "
            "or if the pipeline has a schedule. null: no schedule.",
            EVERY_HALF_HOUR,
        ),
    ] = EVERY_HALF_HOUR
    max_snapshot_age: Annotated[
        str | None, described("Maximum age of the last snapshot.", "10 minutes")
    ] = None
    max_watermark_lag: Annotated[
        str | None, described("Maximum lag of event time behind the clock.", "1 hour")
    ] = None
    max_late_ratio: Annotated[
        float | None,
        described("Maximum share of a stage's rows that are late, behind the watermark.", 0.01),
    ] = None
    max_rejected_ratio: Annotated[
        float | None,
        described("Maximum share of the sources' rows that do not fit their schema.", 0.01),
    ] = None

    def given(self) -> dict[str, Any]:
        """Returns the settings that were given, as arguments of `build_jet_asset_checks`."""
        return self.model_dump(exclude={"schedule"}, exclude_none=True)


class RetrySettings(dg.Model, dg.Resolvable):
    """A retry policy of the step, which then runs in a process of its own."""

    model_config = ConfigDict(extra="forbid")

    max_retries: Annotated[int, described("Number of restarts in one run.", 10)] = 1
    delay: Annotated[float | None, described("Seconds before a restart.", 1)] = None
    backoff: Annotated[
        Literal["linear", "exponential"] | None,
        described("How the delay grows; by default not at all.", "exponential"),
    ] = None

    def policy(self) -> dg.RetryPolicy:
        """Returns Dagster's policy."""
        backoff = None if self.backoff is None else dg.Backoff[self.backoff.upper()]
        return dg.RetryPolicy(max_retries=self.max_retries, delay=self.delay, backoff=backoff)


class FreshnessSettings(dg.Model, dg.Resolvable):
    """A freshness policy: the newest materialization of an asset is not older than a window."""

    model_config = ConfigDict(extra="forbid")

    fail_window: Annotated[str, described("Maximum age.", "1 hour")]
    warn_window: Annotated[
        str | None, described("Maximum age without a warning.", "30 minutes")
    ] = None

    def policy(self) -> dg.FreshnessPolicy:
        """Returns Dagster's policy.

        Raises:
            ConfigurationError: a window is not a duration.
        """
        warn = None if self.warn_window is None else _window(self.warn_window, "warn_window")
        return dg.FreshnessPolicy.time_window(_window(self.fail_window, "fail_window"), warn)


def _window(text: str, name: str) -> timedelta:
    return timedelta(milliseconds=to_ms(text, f"freshness_policy: {name}"))


class _Names:
    """``{{ scope.NAME }}`` and ``{{ scope('NAME') }}``: a variable of the environment, by name."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __call__(self, name: str) -> Any:
        return self._made(name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._made(name)


def _with_off(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    """Returns the settings with "off" in place of False, which is what YAML makes of `off`."""
    off = {name: "off" for name in names if settings.get(name) is False}
    return {**settings, **off}


def resolved_resource(context: dg.ResolutionContext, given: Any) -> dict[str, Any] | None:
    """Resolves settings of a `JetResource`: ``{{ env.NAME }}`` stays a name, so that neither the UI
    nor a run contains the value."""
    if given is None:
        return None
    resolved: dict[str, Any] = context.with_scope(env=_Names(dg.EnvVar)).resolve_value(given)
    return _with_off(resolved, "member_timeout", "scale_up_delay")


def resolved_arguments(context: dg.ResolutionContext, given: Any) -> Mapping[str, Any]:
    """Resolves arguments of the pipeline's function: ``{{ secret.NAME }}`` is a `Secret`, which
    connectors read where they use it; ``{{ env.NAME }}`` is the value."""
    resolved: Mapping[str, Any] = context.with_scope(secret=_Names(Secret)).resolve_value(given)
    return resolved
