"""Settings of a job, validated at construction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from dagster_jet.core.durations import to_ms
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError


def _as_timedelta(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return timedelta(milliseconds=to_ms(value, "duration"))
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
    return value


def _as_snapshot(value: Any) -> Any:
    """Converts digits to an id, because settings may arrive as text."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


Duration = Annotated[timedelta, BeforeValidator(_as_timedelta)]

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
    snapshot_interval: Duration = timedelta(seconds=1)
    """Time from the end of one snapshot's phase 2 to the start of the next snapshot. 0: as often as
    possible, which is every second epoch, because one epoch runs beside the completion of a
    snapshot. If a processor (`apply_processor`) commits in two phases, every epoch ends in a
    snapshot, regardless of this setting."""
    retained_snapshots: int = Field(default=3, ge=1, le=100)
    """Number of snapshots kept for `initial_snapshot`."""
    initial_snapshot: Annotated[int | str | None, BeforeValidator(_as_snapshot)] = None
    """Go back to this retained snapshot: later snapshots are dropped and a new timeline begins. A
    text is the name of an exported snapshot, of this job or another one: its state, positions and
    counters are copied and a new timeline begins.

    This happens once: restarts and later runs with the same value continue from the newest
    snapshot, whether or not this one is still retained. To go back to the same snapshot again,
    start the job once without a value in between.
    """
    suspend_on_failure: bool = False
    """Leave the job SUSPENDED instead of FAILED after a failure that an operator must cure."""
    split_brain_protection: bool = False
    """Start only if more than half of the largest number of members ever seen are reachable."""
    auto_scaling: bool = True
    """Restart gracefully with the new partition table when the store's members have changed."""
    scale_up_delay: Duration = timedelta(seconds=10)
    """Time without a change of members before that restart; several may join in a row."""
    parallelism: int | None = Field(default=None, ge=1)
    """Shards per stateful stage; default: number of tasks that Spark runs at once."""
    max_items_per_epoch: int | None = Field(default=None, ge=1)
    """Largest number of rows of a source in an epoch, as far as input can be split: at least one
    file, or 1 MB of a large one. None: as many as fit into half of Spark's execution and storage
    memory."""
    target_epoch_duration: Duration = timedelta(milliseconds=500)
    """Largest epoch duration while the job keeps up; at least twice the fixed cost of an epoch."""
    catch_up_epoch_duration: Duration = timedelta(seconds=5)
    """Largest epoch duration during a backlog; at least twice the fixed cost of an epoch. Epochs
    grow only until the fixed cost is 10 % of them. Snapshots and stops wait for an epoch's end."""
    poll_interval: Duration = timedelta(milliseconds=200)
    """Interval of polling sources for new input while there is none."""
    max_watermark_retention: Duration | None = None
    """Largest time for which a slow source or partition may hold a stage's watermark back, by wall
    clock; later its rows are late. None: until it has caught up or is idle."""
    member_timeout: Duration | Literal["off"] = timedelta(minutes=1)
    """Absence after which a running job repairs the store around a member: other members take over
    its data, and it leaves the store. "off": only manual repair. A member that answers with errors
    (full disk, wrong password) is never removed."""
    restart_attempts_max: int = Field(default=5, ge=0)
    """Number of restarts within ten minutes before the run ends as failed."""
    lease_ttl: Duration = timedelta(seconds=10)
    """Time for which an owner on another host is considered alive without a sign of life."""
    accept_loss: bool = False
    """Continue although a sink has lost staged rows, or input has disappeared. The events
    `OutputLost` and `InputLost` report the loss."""
    refused_to_dead_letters: bool = False
    """Commit an epoch without the rows that a sink refuses, and send these to the sink's
    dead-letter sink. For decided rows that only the outside system can refuse; supported by
    database tables and Kafka topics. The event `OutputRefused` reports it."""

    if TYPE_CHECKING:  # for type checkers; pydantic generates the constructor

        def __init__(
            self,
            *,
            guarantee: Guarantee | GuaranteeName = ...,
            snapshot_interval: timedelta | str = ...,
            retained_snapshots: int = ...,
            initial_snapshot: int | str | None = ...,
            suspend_on_failure: bool = ...,
            split_brain_protection: bool = ...,
            auto_scaling: bool = ...,
            scale_up_delay: timedelta | str = ...,
            parallelism: int | None = ...,
            max_items_per_epoch: int | None = ...,
            target_epoch_duration: timedelta | str = ...,
            catch_up_epoch_duration: timedelta | str = ...,
            poll_interval: timedelta | str = ...,
            max_watermark_retention: timedelta | str | None = ...,
            member_timeout: timedelta | str = ...,
            restart_attempts_max: int = ...,
            lease_ttl: timedelta | str = ...,
            accept_loss: bool = ...,
            refused_to_dead_letters: bool = ...,
        ) -> None: ...

    @property
    def max_watermark_retention_ms(self) -> int | None:
        """`max_watermark_retention` in milliseconds."""
        retention = self.max_watermark_retention
        return None if retention is None else milliseconds(retention)

    @property
    def member_timeout_s(self) -> float | None:
        """`member_timeout` in seconds; None: off."""
        return None if self.member_timeout == "off" else self.member_timeout.total_seconds()

    @model_validator(mode="after")
    def _consistent(self) -> JobConfig:
        if self.guarantee is Guarantee.NONE and self.initial_snapshot is not None:
            raise ValueError('initial_snapshot needs a guarantee other than "none"')
        if self.refused_to_dead_letters and self.guarantee is not Guarantee.EXACTLY_ONCE:
            raise ValueError('refused_to_dead_letters needs the guarantee "exactly-once"')
        for name in (
            "snapshot_interval",
            "target_epoch_duration",
            "catch_up_epoch_duration",
            "poll_interval",
            "lease_ttl",
            "scale_up_delay",
            "max_watermark_retention",
        ):
            if (getattr(self, name) or timedelta(0)) < timedelta(0):
                raise ValueError(f"{name} is negative")
        if self.member_timeout != "off" and self.member_timeout < timedelta(seconds=1):
            raise ValueError('member_timeout is shorter than 1 second; "off" turns it off')
        if self.lease_ttl < timedelta(seconds=1):
            raise ValueError("lease_ttl is shorter than 1 second")
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _named(cls, given: Any, validate: ModelWrapValidatorHandler[JobConfig]) -> JobConfig:
        try:
            return validate(given)
        except ValidationError as error:
            problems = "; ".join(
                ": ".join([*map(str, e["loc"]), e["msg"].removeprefix("Value error, ")])
                for e in error.errors()
            )
            raise ConfigurationError(f"JobConfig: {problems}.") from None


def milliseconds(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1000)
