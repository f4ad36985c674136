"""Shows streaming jobs of other engines in Dagster: external assets, one sensor, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with
from dagster.components.utils.translation import ResolvedTranslationFn
from pydantic import ConfigDict

from dagster_jet.core.durations import to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.component_settings import described
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.outside.observation_tick import (
    Shown,
    cursor_of,
    default_interval_ms,
    last_move,
    reports,
    shown_in,
)
from dagster_jet.orchestration.outside.observed_streams_scaffolder import (
    ObservedStreamsScaffolder,
)
from dagster_jet.orchestration.outside.parallel_reads import ParallelReads
from dagster_jet.orchestration.outside.reading import unreadable, verdicts
from dagster_jet.orchestration.outside.stream_settings import (
    Flink,
    KafkaGroup,
    ObservedStream,
    StructuredStreaming,
    asset_of,
)
from dagster_jet.ownership.lease import wall_clock_ms

_DESCRIPTIONS = {
    "alive": "The job runs, and commits while it has input.",
    "lag": "Few rows are unread.",
    "watermark_lag": "Event time is not far behind the clock.",
}


@scaffold_with(ObservedStreamsScaffolder)
class ObservedStreamsComponent(dg.Component, dg.Model, dg.Resolvable):
    """Streaming jobs that run elsewhere, as external assets with lag, watermark and checks.

    Nothing is started or stopped, and nothing is written but Dagster's events: a sensor reads a
    query of Structured Streaming by its checkpoint folder, a Flink job by the REST API, a consumer
    group by Kafka's admin API.

    Example:
        .. code-block:: yaml

            type: dagster_jet.ObservedStreamsComponent
            attributes:
              structured_streaming:
                - {key: payments, checkpoint: s3://bucket/checkpoints/payments}
              flink:
                - {key: sessions, url: "http://flink:8081", job: sessions}
              kafka_groups:
                - {key: billing, servers: "kafka:9092", group: billing}
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    structured_streaming: Annotated[
        list[StructuredStreaming],
        described(
            "Queries of Structured Streaming, by their checkpoint folders.",
            [{"key": "payments", "checkpoint": "s3://bucket/checkpoints/payments"}],
        ),
    ] = []  # noqa: RUF012  # pydantic copies it
    flink: Annotated[
        list[Flink],
        described(
            "Flink jobs, by Flink's REST API.",
            [{"key": "sessions", "url": "http://flink:8081", "job": "sessions"}],
        ),
    ] = []  # noqa: RUF012
    kafka_groups: Annotated[
        list[KafkaGroup],
        described(
            "Kafka consumer groups, by their committed offsets.",
            [{"key": "billing", "servers": "kafka:9092", "group": "billing"}],
        ),
    ] = []  # noqa: RUF012
    sensor: Annotated[
        Literal["running", "stopped"],
        described("Whether the sensor is on when it is first loaded.", "running"),
    ] = "running"
    minimum_interval_seconds: Annotated[int, described("Seconds between two ticks.", 30)] = 30
    report_every: Annotated[
        str | None,
        described(
            "Minimum time between two observations of a stream, unless a check changes. By default "
            "10 minutes, or 7.5 minutes per stream if that is longer: Dagster's log then grows by "
            "at most 27 MB a month.",
            "15 minutes",
        ),
    ] = None
    group_name: Annotated[str | None, described("The group of the assets.", "streams")] = None
    translation: Annotated[
        ResolvedTranslationFn[ObservedStream],
        described(
            "Changes of each asset: `data` is the stream, `spec` its asset by default.",
            {"owners": ["team:payments"]},
        ),
    ] = None

    def get_asset_spec(self, stream: ObservedStream) -> dg.AssetSpec:
        """Return the asset of one stream; subclasses may override it."""
        spec = asset_of(stream, self.group_name)
        return spec if self.translation is None else self.translation(spec, stream)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the assets, their checks and the sensor.

        Raises:
            ConfigurationError: two streams have one key, or a setting of a stream is not valid.
        """
        streams = [*self.structured_streaming, *self.flink, *self.kafka_groups]
        specs = [self.get_asset_spec(stream) for stream in streams]
        by_key = dict(zip((spec.key for spec in specs), streams, strict=True))
        if not streams or len(by_key) < len(streams):
            raise ConfigurationError(
                "two streams have one key." if streams else "no stream is given.",
                cure="List streams, each with a key of its own, under structured_streaming, flink "
                "or kafka_groups.",
            )
        name = dagster_name(context.path.name)
        every = self.report_every
        every_ms = (
            default_interval_ms(len(streams)) if every is None else to_ms(every, "report_every")
        )
        watched = _Watched(by_key, every_ms)
        status = dg.DefaultSensorStatus[self.sensor.upper()]
        return dg.Definitions(
            assets=specs,
            asset_checks=[watched.checks(f"{name}_checks")],
            sensors=[watched.sensor(f"{name}_observer", self.minimum_interval_seconds, status)],
        )


class _Watched:
    """The streams of a component, by asset key, with what reads them."""

    def __init__(self, streams: Mapping[dg.AssetKey, ObservedStream], report_every_ms: int) -> None:
        self._report_every_ms = report_every_ms
        self._limits = {key: stream.limits() for key, stream in streams.items()}
        readers = {key.to_user_string(): stream.reader() for key, stream in streams.items()}
        self._reads = ParallelReads(readers)

    def sensor(
        self, name: str, interval_s: int, status: dg.DefaultSensorStatus
    ) -> dg.SensorDefinition:
        def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
            before = shown_in(context.cursor)
            read = self._reads.read(*(key.to_user_string() for key in self._limits))
            now_ms, events, after = wall_clock_ms(), [], {}
            for key, limits in self._limits.items():
                one = key.to_user_string()
                known = before.get(one, Shown())
                news, after[one] = reports(
                    key, read[one], limits, known, now_ms, self._report_every_ms
                )
                events += news
            return dg.SensorResult(asset_events=events, cursor=cursor_of(after))

        return dg.SensorDefinition(
            name=name,
            evaluation_fn=tick,
            minimum_interval_seconds=interval_s,
            description="Observes streaming jobs that run elsewhere.",
            default_status=status,
        )

    def checks(self, name: str) -> dg.AssetChecksDefinition:
        """Returns the checks for "Execute" in the UI; the sensor reports them by itself."""

        def evaluate(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
            selected = context.selected_asset_check_keys
            asked = {each.asset_key.to_user_string(): each.asset_key for each in selected}
            read = self._reads.read(*asked)
            now_ms = wall_clock_ms()
            for user_string, key in asked.items():
                one, limits = read[user_string], self._limits[key]
                if isinstance(one, str):
                    found = unreadable(one, limits)
                else:
                    one = one.after(last_move(context.instance, key), now_ms)
                    found = verdicts(one, limits, now_ms)
                for check, health in found.items():
                    if dg.AssetCheckKey(key, check) in selected:
                        yield dg.AssetCheckResult(
                            passed=health.is_well,
                            check_name=check,
                            asset_key=key,
                            description=health.why,
                            metadata=dict(health.numbers),
                        )

        # Real classes, not this module's string annotations: Dagster reads them from the function.
        evaluate.__annotations__ = {"context": dg.AssetCheckExecutionContext}
        return dg.multi_asset_check(
            name=name,
            specs=[
                dg.AssetCheckSpec(check, asset=key, description=_DESCRIPTIONS[check])
                for key, limits in self._limits.items()
                for check in unreadable("", limits)
            ],
            can_subset=True,
        )(evaluate)
