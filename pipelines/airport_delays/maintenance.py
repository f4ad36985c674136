"""Maintenance of the lake's tables. In a file of its own, because these are whole definitions."""

from dagster_jet import build_jet_lake_maintenance
from pipelines.airport_delays import assets

if assets.LAKE:
    airport_delays_maintenance = build_jet_lake_maintenance(
        assets.airport_delays_assets, cron_schedule="* * * * *"
    )
