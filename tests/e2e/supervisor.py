"""The supervisor of the tiny job, whose ticks a test calls."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from dagster_jet import build_jet_supervisor_sensor

from .run_worker import Host
from .tiny import jet_resource, tiny


class Supervisor:
    """The sensor, ticked by hand; its definitions are reloaded between two ticks."""

    def __init__(self, host: Host, *, standby: bool = False) -> None:
        self.host, self.standby = host, standby
        self.cursor: str | None = None

    def tick(self, max_age: float | None = None, *, more: bool = False) -> dg.SensorResult:
        sensor = build_jet_supervisor_sensor(
            job="tiny_job",
            pipeline=tiny(self.host.folder, more=more),
            jet=jet_resource(self.host.folder),
            max_run_age_seconds=max_age,
            standby=self.standby,
        )
        with dg.build_sensor_context(instance=self.host.instance, cursor=self.cursor) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        return result

    def requests(self, run_key: str, *, more: bool = False) -> Mapping[str, str]:
        """The tags of the one run that a tick requests."""
        requests = self.tick(more=more).run_requests
        assert requests is not None and [request.run_key for request in requests] == [run_key]
        return requests[0].tags

    def says(self, text: str, *, more: bool = False) -> bool:
        """Whether a tick requests nothing and says so."""
        said = self.tick(more=more).skip_reason
        return said is not None and text in (said.skip_message or "")
