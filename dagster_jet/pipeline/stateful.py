"""Definitions of the stateful stages. The engine has an operator for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from dagster_jet.core.aggregate import Aggregate
from dagster_jet.core.durations import in_words
from dagster_jet.core.state_format import StateFormat
from dagster_jet.core.window_frames import Frames
from dagster_jet.pipeline.event_time import RESULT_LAG_MS, EventTime
from dagster_jet.pipeline.stage_kind import StageKind
from dagster_jet.pipeline.user_functions import Rest, TimerTime
from dagster_jet.pipeline.windows import SessionWindow, Window
from dagster_jet.snapshot.plan import EVENT_TIME, FRAMES, LEAD, PLAIN

if TYPE_CHECKING:
    from dagster_jet.operators.aggregates.aggregation import Aggregation


JoinHow: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]


@dataclass(frozen=True)
class StatefulNode:
    """Base class of stateful stages. State is matched by `name` across executions."""

    name: str
    upstream: tuple[str, ...]
    kind: ClassVar[StageKind]
    state_format: ClassVar[int] = 1
    """Version of the saved state's format. A snapshot with a newer version is refused."""

    def floor_watermark(self, watermark_ms: int) -> int:
        """Returns the last watermark up to this one that could close something."""
        return watermark_ms

    @property
    def emits_at_boundaries(self) -> bool:
        """Whether the stage emits only in epochs in which its watermark moves."""
        return False

    @property
    def follows_clock(self) -> bool:
        """Whether state expires by the clock of the epoch instead of the watermark."""
        return False

    @property
    def output_delay_ms(self) -> int:
        """Largest lag of a result's event time behind the watermark at its emission, in ms."""
        return 0

    def describe(self) -> dict[str, str]:
        """Returns properties for users and lineage."""
        return {}

    def shape(self) -> Mapping[str, Any]:
        """Returns the properties that the saved state depends on, as JSON; without functions."""
        return {}


@dataclass(frozen=True)
class AggregateNode(StatefulNode):
    keys: tuple[str, ...]
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    time: EventTime
    early_results_ms: int | None = None
    allowed_lateness_ms: int | None = None
    """How long after its end a window takes rows and is corrected; None: it is final."""
    kind: ClassVar = StageKind.AGGREGATE

    @property
    def output_delay_ms(self) -> int:
        # A session is emitted once the watermark is past its end, not when it equals the end.
        return RESULT_LAG_MS if isinstance(self.window, SessionWindow) else 0

    @property
    def emits_at_boundaries(self) -> bool:
        early_or_corrected = self.early_results_ms is not None or self.allowed_lateness_ms
        return not isinstance(self.window, SessionWindow) and not early_or_corrected

    @property
    def frames(self) -> Frames:
        """Frames of a tumbling or sliding window."""
        assert not isinstance(self.window, SessionWindow)
        return replace(self.window.frames, lateness_ms=self.allowed_lateness_ms or 0)

    def floor_watermark(self, watermark_ms: int) -> int:
        if isinstance(self.window, SessionWindow):
            return watermark_ms  # any millisecond may close a session
        return self.frames.floor_watermark(watermark_ms)

    def describe(self) -> dict[str, str]:
        lateness_ms = self.allowed_lateness_ms
        return {
            "keys": ", ".join(self.keys),
            "window": str(self.window),
            "aggregates": _text(self.aggregates),
            **({} if lateness_ms is None else {"allowed lateness": in_words(lateness_ms)}),
        }

    @property
    def _frames_in_state(self) -> list[int] | str | None:
        """Window sizes, gaps and maxima may change: open windows end by the new value."""
        if isinstance(self.window, SessionWindow):
            return None if self.window.max_ms is None else "sessions with a maximum"
        return [self.window.slide_ms, self.window.offset_ms]

    def shape(self) -> Mapping[str, Any]:
        return {
            "keys": list(self.keys),
            FRAMES: self._frames_in_state,
            "partials": _partials(self.aggregates),
            **_plain_partials(self.aggregates),
            **_read_times(self.time),
        }


@dataclass(frozen=True)
class CountWindowNode(StatefulNode):
    """Aggregation of each `size` rows of a key."""

    keys: tuple[str, ...]
    size: int
    aggregates: tuple[tuple[str, Aggregate], ...]
    time: EventTime | None
    in_event_order: bool
    """Rows wait for the watermark; otherwise they are counted in order of arrival."""
    slide: int | None = None
    """Rows from the beginning of one window to that of the next; None: `size`."""
    rest: Rest = "drop"
    """Treatment of open windows at the end of the input."""
    kind: ClassVar = StageKind.COUNT_WINDOW

    def describe(self) -> dict[str, str]:
        slide = {} if self.slide is None else {"slide": f"{self.slide} rows"}
        rest = {} if self.rest == "drop" else {"rest": self.rest}
        window = {"window": f"{self.size} rows", **slide, **rest, "order": _order(self)}
        return {"keys": ", ".join(self.keys), **window, "aggregates": _text(self.aggregates)}

    def shape(self) -> Mapping[str, Any]:
        return {
            "keys": list(self.keys),
            "size": self.size,
            **({} if self.slide is None else {"slide": self.slide}),
            "order": _order(self),
            "partials": _partials(self.aggregates),
            **_plain_partials(self.aggregates),
        }


@dataclass(frozen=True)
class RollingNode(StatefulNode):
    """Aggregation by key over all rows so far; emits one updated row per key with new rows."""

    keys: tuple[str, ...]
    aggregates: tuple[tuple[str, Aggregate], ...]
    time: EventTime | None
    ttl_ms: int | None = None
    """Totals begin anew after so long a pause of their key; None: they do not."""
    kind: ClassVar = StageKind.ROLLING_AGGREGATE

    def describe(self) -> dict[str, str]:
        ttl = {} if self.ttl_ms is None else {"ttl": in_words(self.ttl_ms)}
        return {"keys": ", ".join(self.keys), **ttl, "aggregates": _text(self.aggregates)}

    def shape(self) -> Mapping[str, Any]:
        return {
            "keys": list(self.keys),
            "ttl": self.ttl_ms is not None,
            "partials": _partials(self.aggregates),
            **_plain_partials(self.aggregates),
            # Without a ttl no saved time decides about anything.
            **({} if self.ttl_ms is None or self.time is None else _read_times(self.time)),
        }


@dataclass(frozen=True)
class DeduplicateNode(StatefulNode):
    """Passes one of the rows of each key within a time."""

    keys: tuple[str, ...]
    within_ms: int
    time: EventTime
    in_event_order: bool
    """Rows wait for the watermark; otherwise they are compared in order of arrival."""
    keep: Literal["first", "last"] = "first"
    kind: ClassVar = StageKind.DEDUPLICATE

    @property
    def output_delay_ms(self) -> int:
        # The last row is known when no row can follow the first one within the time.
        return self.within_ms if self.keep == "last" else 0

    def describe(self) -> dict[str, str]:
        keys, within = ", ".join(self.keys), in_words(self.within_ms)
        return {"keys": keys, "within": within, "order": _order(self), "keep": self.keep}

    def shape(self) -> Mapping[str, Any]:
        kept = {"order": _order(self), "keep": self.keep}
        return {"keys": list(self.keys), **kept, **_read_times(self.time)}


@dataclass(frozen=True)
class JoinNode(StatefulNode):
    """Interval join of two streams."""

    keys: tuple[str, ...]
    between_ms: tuple[int, int]
    """Bounds of the other stream's time minus this stream's."""
    how: JoinHow
    times: tuple[EventTime, EventTime]
    suffix: str
    condition: Callable[[Any], Any] | None = None
    kind: ClassVar = StageKind.JOIN

    @property
    def output_delay_ms(self) -> int:
        # A left row waits for a partner, or until no partner can arrive any more.
        return max(self.between_ms[1], 0)

    def describe(self) -> dict[str, str]:
        lower, upper = self.between_ms
        bounds = {"between": f"{_signed(lower)} and {_signed(upper)}"}
        if upper == -lower:
            bounds = {"within": in_words(upper)}
        return {"keys": ", ".join(self.keys), **bounds, "how": self.how}

    def shape(self) -> Mapping[str, Any]:
        # By so much the rows of one side are kept longer: saved times depend on it.
        skew = {"skew": sum(self.between_ms)}
        return {"keys": list(self.keys), "how": self.how, **skew, **_read_times(*self.times)}


@dataclass(frozen=True)
class JoinAsOfNode(StatefulNode):
    """Joins rows with the newest versions of their key, of another stream."""

    keys: tuple[str, ...]
    """Empty: each row meets the versions of all subjects."""
    subject: tuple[str, ...]
    """Columns of the other stream; a key has a newest version for each value of them."""
    how: Literal["left", "inner"]
    keep_ms: int | None
    """How long a version counts; None: until the next one."""
    times: tuple[EventTime, EventTime]
    suffix: str
    condition: Callable[[Any], Any] | None = None
    kind: ClassVar = StageKind.JOIN_AS_OF

    def describe(self) -> dict[str, str]:
        keep = {} if self.keep_ms is None else {"keep": in_words(self.keep_ms)}
        subject = {"versions of": ", ".join(self.subject)} if self.subject else {}
        return {"keys": ", ".join(self.keys), **subject, "how": self.how, **keep}

    def shape(self) -> Mapping[str, Any]:
        return {"keys": list(self.keys), **_read_times(*self.times)}


@dataclass(frozen=True)
class StatefulMapNode(StatefulNode):
    """Calls a user's function with state per key."""

    keys: tuple[str, ...]
    function: Callable[..., Any]
    create: Callable[[], Any]
    on_evict: Callable[..., Any] | None
    ttl_ms: int | None
    output_schema: str
    time: EventTime | None
    in_event_order: bool
    """Rows wait for the watermark; otherwise they are passed on in order of arrival."""
    keeps_dead_letters: bool = False
    """Rows that fail in the function go to dead-letter sinks; otherwise they fail the job."""
    saved_as: StateFormat = StateFormat.PLAIN
    on_timer: Callable[..., Any] | None = None
    columns: tuple[str, ...] = ()
    """SQL columns that the function receives; none: the row's."""
    timers: TimerTime = "event time"
    made_by: Literal["map_stateful", "running", "match"] = "map_stateful"
    """The method that made the stage."""
    kind: ClassVar = StageKind.MAP_STATEFUL

    @property
    def output_delay_ms(self) -> int:
        return self.ttl_ms or 0 if self.on_evict else 0

    @property
    def follows_clock(self) -> bool:
        return self.timers == "processing time"

    def describe(self) -> dict[str, str]:
        ttl = {} if self.ttl_ms is None else {"ttl": in_words(self.ttl_ms)}
        timers = {} if self.on_timer is None else {"timers": self.timers}
        return {"keys": ", ".join(self.keys), "order": _order(self), **timers, **ttl}

    def shape(self) -> Mapping[str, Any]:
        return {
            "keys": list(self.keys),
            "ttl": self.ttl_ms is not None,
            "order": _order(self),
            "function": self.made_by,
            "timers": self.timers if self.follows_clock else self.on_timer is not None,
            **({LEAD: True} if self.made_by == "running" and self.on_evict else {}),
            PLAIN: _plain({"states": self.saved_as}),
        }


@dataclass(frozen=True)
class StatefulMapInBatchesNode(StatefulNode):
    """Calls a user's function with tables of rows and states."""

    keys: tuple[str, ...]
    function: Callable[..., Any]
    state_schema: str
    on_evict: Callable[..., Any] | None
    ttl_ms: int | None
    output_schema: str
    time: EventTime | None
    in_event_order: bool
    """Rows wait for the watermark; otherwise they are passed on in order of arrival."""
    kind: ClassVar = StageKind.MAP_STATEFUL_IN_BATCHES

    @property
    def output_delay_ms(self) -> int:
        return self.ttl_ms or 0 if self.on_evict else 0

    def describe(self) -> dict[str, str]:
        ttl = {} if self.ttl_ms is None else {"ttl": in_words(self.ttl_ms)}
        own = {"state": self.state_schema, "order": _order(self)}
        return {"keys": ", ".join(self.keys), **own, **ttl}

    def shape(self) -> Mapping[str, Any]:
        # The analysis compares the state's columns.
        ttl = self.ttl_ms is not None
        return {"keys": list(self.keys), "ttl": ttl, "order": _order(self)}


@dataclass(frozen=True)
class ProcessorNode(StatefulNode):
    """Runs a user's `Processor`, one instance per shard."""

    keys: tuple[str, ...]
    supplier: Callable[[], Any]
    output_schema: str
    time: EventTime | None
    in_event_order: bool
    """Rows wait for the watermark; otherwise they are passed on in order of arrival."""
    in_batches: bool
    delay_ms: int = 0
    saved_as: StateFormat = StateFormat.PLAIN
    kind: ClassVar = StageKind.PROCESSOR

    @property
    def output_delay_ms(self) -> int:
        return self.delay_ms

    def describe(self) -> dict[str, str]:
        keys = {"keys": ", ".join(self.keys)} if self.keys else {}
        return {**keys, "order": _order(self)}

    def shape(self) -> Mapping[str, Any]:
        saved = {PLAIN: _plain({"entries": self.saved_as})}
        return {"keys": list(self.keys), "order": _order(self), **saved}


def _order(
    node: CountWindowNode
    | DeduplicateNode
    | StatefulMapNode
    | StatefulMapInBatchesNode
    | ProcessorNode,
) -> str:
    return "event time" if node.in_event_order else "arrival"


def _signed(duration_ms: int) -> str:
    return f"-{in_words(-duration_ms)}" if duration_ms < 0 else in_words(duration_ms)


def _read_times(*times: EventTime) -> Mapping[str, Any]:
    """Adds window-end event times to `shape`: saved data contains or was divided by them."""
    if not any(time.is_window_end for time in times):
        return {}
    return {EVENT_TIME: [f"{time.lag_ms} ms before" for time in times]}


def _aggregation(aggregates: tuple[tuple[str, Aggregate], ...]) -> Aggregation:
    """Returns the computation of the aggregates; called late, because it loads Arrow."""
    from dagster_jet.operators.aggregates.aggregation import Aggregation

    return Aggregation(aggregates)


def _partials(aggregates: tuple[tuple[str, Aggregate], ...]) -> list[str]:
    """Returns the names of the saved partials. Results are computed from them and may be renamed
    (except `agg.custom`, which names its partials), added or removed."""
    return sorted(name for name, _ in _aggregation(aggregates).partials)


def _plain_partials(aggregates: tuple[tuple[str, Aggregate], ...]) -> dict[str, list[str]]:
    formats = _aggregation(aggregates).accumulator_formats
    return {PLAIN: _plain(formats)} if formats else {}


def _plain(formats: Mapping[str, StateFormat]) -> list[str]:
    return sorted(name for name, saved_as in formats.items() if saved_as is StateFormat.PLAIN)


def _text(aggregates: tuple[tuple[str, Aggregate], ...]) -> str:
    return ", ".join(f"{name} = {a.name}({a.column or '*'})" for name, a in aggregates)
