"""Settings of a job, validated at construction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, overload

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from dagster_jet.core.cadence import LONGEST_MS
from dagster_jet.core.durations import to_ms
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.secret import Secret, named
from dagster_jet.errors import ConfigurationError


def _as_timedelta(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return timedelta(milliseconds=to_ms(value, "duration"))
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
    return value


Duration = Annotated[timedelta, BeforeValidator(_as_timedelta)]

PARAMETERS_BYTES_MAX = 16 << 10
"""Size of all parameters of a job as JSON."""
GuaranteeName: TypeAlias = Literal["none", "at-least-once", "exactly-once"]


class JobConfig(BaseModel):
    """Settings of one job. Durations are `timedelta` or texts such as "1 second".

    Raises:
        ConfigurationError: an unknown field, a wrong value or a contradiction; names the field.

    Example:
        >>> config = JobConfig(snapshot_interval="10 seconds", parallelism=8)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """Guarantee for the output after a crash."""
    snapshot_interval: Duration | None = None
    """Time from the end of one snapshot's phase 2 to the start of the next snapshot. None: four
    snapshots a second, one a second with a sink that keeps each commit (lake tables,
    `foreach_epoch`), and fewer if they take longer than that. 0: as often as possible, which is
    every second epoch, because one epoch runs beside the completion of a snapshot. If a processor
    (`apply_processor`) commits in two phases, every epoch ends in a snapshot, regardless of this
    setting."""
    retained_snapshots: int = Field(default=3, ge=1, le=100)
    """Number of snapshots kept, to which a start can go back (`initial_snapshot`)."""
    suspend_on_failure: bool = False
    """Leave the job SUSPENDED instead of FAILED after a failure that an operator must cure."""
    parallelism: int | None = Field(default=None, ge=1)
    """Shards per stateful stage; default: number of tasks that Spark runs at once."""
    max_items_per_epoch: int | None = Field(default=None, ge=1)
    """Largest number of rows of a source in an epoch, as far as input can be split: at least one
    file, or 1 MB of a large one. None: as many as fit into half of Spark's execution and storage
    memory."""
    target_epoch_duration: Duration = timedelta(milliseconds=500)
    """Largest epoch duration while the job keeps up; at least twice the fixed cost of an epoch.
    During a backlog ten times as much; epochs then grow only until the fixed cost is 10 % of them.
    Snapshots and stops wait for an epoch's end."""
    max_watermark_retention: Duration | None = None
    """Largest time for which a slow source or partition may hold a stage's watermark back, by wall
    clock; later its rows are late. None: until it has caught up or is idle."""
    restart_attempts_max: int = Field(default=5, ge=0)
    """Number of restarts after failed executions. One more failure ends the run as failed; the
    record says NOT_RUNNING. Failures count until an execution makes progress, those of the last ten
    minutes even then."""
    parameters: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """Values that functions read in tasks, as `job_context().parameters[name]`: what JSON can hold,
    at most 16 KB, or `Secret`s. A text "env:NAME" is the secret of that name."""

    if TYPE_CHECKING:  # for type checkers; pydantic generates the constructor

        def __init__(
            self,
            *,
            guarantee: Guarantee | GuaranteeName = ...,
            snapshot_interval: timedelta | str | None = ...,
            retained_snapshots: int = ...,
            suspend_on_failure: bool = ...,
            parallelism: int | None = ...,
            max_items_per_epoch: int | None = ...,
            target_epoch_duration: timedelta | str = ...,
            max_watermark_retention: timedelta | str | None = ...,
            restart_attempts_max: int = ...,
            parameters: Mapping[str, Any] = ...,
        ) -> None: ...

    @field_validator("parameters")
    @classmethod
    def _plain(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        values = {name: named(value) for name, value in given.items()}
        plain = {name: v for name, v in values.items() if not isinstance(v, Secret)}
        for name, value in plain.items():
            try:
                is_kept = json.loads(json.dumps(value, allow_nan=False)) == value
            except (TypeError, ValueError):
                is_kept = False
            if not is_kept:
                raise ValueError(
                    f"{name!r} is a {type(value).__name__} that JSON cannot hold; give numbers, "
                    "texts, booleans, None, lists and dicts of them, or a Secret"
                )
        if len(json.dumps(plain)) > PARAMETERS_BYTES_MAX:
            raise ValueError(
                f"more than {PARAMETERS_BYTES_MAX} bytes, which travel with every epoch; look them "
                "up in a table with enrich(), or in a file that create= of map_using_service reads"
            )
        return values

    @model_validator(mode="after")
    def _consistent(self) -> JobConfig:
        for name in ("snapshot_interval", "target_epoch_duration", "max_watermark_retention"):
            if (getattr(self, name) or timedelta(0)) < timedelta(0):
                raise ValueError(f"{name} is negative")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, given: Any, validate: ModelWrapValidatorHandler[JobConfig]) -> JobConfig:
        try:
            return validate(given)
        except ValidationError as error:
            problems = "; ".join(
                ": ".join([*map(str, e["loc"]), _problem(e["type"], e["msg"])])
                for e in error.errors()
            )
            raise ConfigurationError(f"JobConfig: {problems}.") from None


def _problem(kind: str, text: str) -> str:
    if kind == "extra_forbidden":
        return f"there is no such setting; there are {', '.join(JobConfig.model_fields)}"
    return text.removeprefix("Value error, ").removeprefix("duration: ")


def longest_pause(config: JobConfig) -> timedelta:
    """Returns the longest time between two snapshots of a job that has input."""
    interval = config.snapshot_interval
    return timedelta(milliseconds=LONGEST_MS) if interval is None else interval


@overload
def milliseconds(duration: timedelta) -> int: ...
@overload
def milliseconds(duration: timedelta | None) -> int | None: ...
def milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else round(duration.total_seconds() * 1000)
