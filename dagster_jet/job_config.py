"""How a job is to be run: validated when it is made, before anything happens."""

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
    """Digits alone are an id, also where settings are text."""
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
    """What the output looks like after a crash."""
    snapshot_interval: Duration = timedelta(seconds=1)
    """The time from the end of one snapshot's phase 2 to the start of the next snapshot. 0: as
    often as possible, which is every second epoch, because one epoch runs beside the completion of
    a snapshot. If a processor (`apply_processor`) commits in two phases, every epoch ends in a
    snapshot, whatever this says."""
    retained_snapshots: int = Field(default=3, ge=1, le=100)
    """How many snapshots are kept, so that `initial_snapshot` can go back to them."""
    initial_snapshot: Annotated[int | str | None, BeforeValidator(_as_snapshot)] = None
    """Go back to this retained snapshot: later ones are given up, and a new timeline begins. A text
    is the name of an exported snapshot, of this job or of any other one: its state, positions and
    counters are copied, and a new timeline begins.

    This happens once: restarts, and later runs with the same value, go on from the newest snapshot,
    whether this one is still retained or not. To go back to the same snapshot a second time, start
    the job once without a value in between."""
    suspend_on_failure: bool = False
    """A failure that a person must cure leaves the job SUSPENDED instead of FAILED."""
    split_brain_protection: bool = False
    """Start only if more than half of the most members that the job has ever seen are reachable."""
    auto_scaling: bool = True
    """Restart gracefully onto the new partition table when the store's members have changed."""
    scale_up_delay: Duration = timedelta(seconds=10)
    """How long the members must not change before that restart, because several may join in a
    row."""
    parallelism: int | None = Field(default=None, ge=1)
    """Shards per stateful stage; default: as many as Spark runs tasks at once."""
    max_items_per_epoch: int | None = Field(default=None, ge=1)
    """The most rows of one source in one epoch, as far as it can be cut: of files it takes one at
    least, or 1 MB of a large one. None: as many as memory allows, which is half of what Spark has
    for execution and storage."""
    target_epoch_duration: Duration = timedelta(milliseconds=500)
    """The longest epoch of a job that keeps up with its input. Twice what an epoch costs without a
    row, where that is longer."""
    catch_up_epoch_duration: Duration = timedelta(seconds=5)
    """The longest epoch of a job that catches up with a backlog: likewise. It is only as long as it
    takes to make what an epoch costs in any case a tenth of it. A snapshot waits for the epoch's
    end, and so does a stop."""
    poll_interval: Duration = timedelta(milliseconds=200)
    """How often sources are asked for new input while there is none."""
    max_watermark_retention: Duration | None = None
    """How long a slow source or partition may hold a stage's watermark back, by wall clock; after
    that its rows are late. None: until it is no longer behind, or is idle."""
    member_timeout: Duration | Literal["off"] = timedelta(minutes=1)
    """How long a member of the store may stay away before a running job repairs around it: the
    others take over what it held, and it leaves the store. "off": only people repair. A member that
    answers and refuses (a full disk, a wrong password) is never given up."""
    restart_attempts_max: int = Field(default=5, ge=0)
    """How many restarts this process makes within ten minutes before the run ends as failed."""
    lease_ttl: Duration = timedelta(seconds=10)
    """How long an owner on another host that shows no sign of life is believed to live."""
    accept_loss: bool = False
    """Go on although a sink has lost rows that it had staged, or input is gone. The events
    `OutputLost` and `InputLost` report the loss."""
    refused_to_dead_letters: bool = False
    """Commit an epoch without the rows that a sink's place refuses, and send these to the sink's
    dead-letter sink. For rows that are decided and that only the outside system knows it will not
    take; tables of databases can do it. The event `OutputRefused` reports it."""

    if TYPE_CHECKING:  # pydantic makes it from the fields; this says what they may be given as

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
