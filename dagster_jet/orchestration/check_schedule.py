"""Schedule that runs the checks of a pipeline's assets, so that they turn red by themselves."""

from __future__ import annotations

import dagster as dg

from dagster_jet.orchestration.dagster_name import given_name

EVERY_HALF_HOUR = "*/30 * * * *"


def build_jet_check_schedule(
    checks: dg.AssetChecksDefinition,
    *,
    cron_schedule: str = EVERY_HALF_HOUR,
    name: str | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.RUNNING,
) -> dg.ScheduleDefinition:
    """Return a schedule of runs that evaluate the checks of a pipeline.

    Each run starts a process, reads the store and starts no Spark. Dagster keeps about 190 KB for
    it, permanently.

    Args:
        checks: the result of `build_jet_asset_checks`.
        cron_schedule: cron expression, as for Dagster.
        name: the schedule's name; by default that of the checks' op plus ``_schedule``. Its job is
            named after the op plus ``_job``.
        execution_timezone: time zone of `cron_schedule`; by default UTC.
        default_status: status of the schedule when it is first loaded.

    Example:
        >>> import dagster as dg
        >>> @dg.multi_asset_check(name="shop_checks", specs=[dg.AssetCheckSpec("alive", asset="a")])
        ... def checks(): ...
        >>> build_jet_check_schedule(checks).name
        'shop_checks_schedule'
    """
    op = checks.node_def.name
    return dg.ScheduleDefinition(
        name=given_name(name, f"{op}_schedule"),
        job=dg.define_asset_job(
            f"{op}_job",
            selection=dg.AssetSelection.checks(checks),
            executor_def=dg.in_process_executor,
        ),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        description="Evaluates the checks of a pipeline's assets.",
        default_status=default_status,
    )
