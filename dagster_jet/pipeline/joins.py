"""Joins of two streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

from dagster_jet.core.durations import Duration, signed_ms, to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline.checks import columns_of, refuse_twice
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Node
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.stateful import JoinAsOfNode, JoinHow, JoinNode

StageT = TypeVar("StageT", bound=Point)
"""Type of the other stream."""
JoinedT = TypeVar("JoinedT", bound=Point)
"""Type of the resulting stage."""


class Joins(Point, Generic[StageT, JoinedT]):
    """A stage that can be joined with another one."""

    def join(
        self,
        other: StageT,
        *,
        on: str | Sequence[str],
        within: Duration | None = None,
        between: tuple[Duration, Duration] | None = None,
        name: str,
        how: JoinHow = "inner",
        condition: Callable[[Any], Any] | None = None,
        suffix: str = "_right",
    ) -> JoinedT:
        """Joins rows of two streams with equal keys that are near each other in event time.

        Columns: the keys, this stream's, the other's. A column of the other stream with a name of
        this stream's gets `suffix`. The event time of a result is that of this stream's row; with
        "right" and "outer" results have no event time.

        Args:
            other: a stream of the same pipeline.
            on: columns of both streams that must be equal.
            within: largest event-time difference of a pair; also how long state keeps rows.
            between: instead of `within`: least and largest time from this stream's row to the other
                one. `("-10 minutes", "1 hour")`: from ten minutes before it to an hour after it.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            how: "inner", "left", "right" or "outer": a row without a partner is emitted with nulls
                when the watermark shows that no partner can arrive any more. "semi": each row of
                this stream that has a partner, once. "anti": each that has none.
            condition: called with an Arrow table of pairs, in the columns of an inner join; returns
                an array with a boolean for each. Other pairs are no partners. It must depend on the
                rows alone.
            suffix: suffix of the other stream's columns whose names this stream has, too.

        Raises:
            PipelineError: a stream has no event time or is of another pipeline, `how` is not valid,
                or there is not exactly one of `within` and `between`.
            ConfigurationError: a duration cannot be read, `within` is negative, or the bounds of
                `between` are the wrong way round.

        Example:
            >>> paid = orders.join(payments, on="order_id", within="1 hour", name="paid")
        """
        self._check_how(how, get_args(JoinHow), name)
        keys, times = self._sides(other, on, name)
        bounds = self._bounds(within, between, name)
        upstream = (self._node, other._node)
        node = JoinNode(name, upstream, keys, bounds, how, times, suffix, condition)
        # An unpaired row of the other stream has no event time of this stream.
        return self._joined(node, None if how in ("right", "outer") else self._time)

    def join_as_of(
        self,
        other: StageT,
        *,
        on: str | Sequence[str],
        versions_of: str | Sequence[str] = (),
        name: str,
        how: Literal["left", "inner"] = "left",
        keep: Duration | None = None,
        condition: Callable[[Any], Any] | None = None,
        suffix: str = "_right",
    ) -> JoinedT:
        """Joins each row with the newest version of its key in another stream, at its event time.

        A row of `other` is a version: it counts from its event time on, until the next one of its
        key. Rows and versions wait until the watermark has passed them, so results do not depend on
        how rows are divided into epochs, and come later by the allowed lag. Columns: the keys, this
        stream's, the other's. The event time of a result is that of this stream's row.

        With `on=[]` each row meets every version: `other` is *broadcast*. It should be small, such
        as rules or settings, because each of the store's 271 partitions has a copy.

        Args:
            other: a stream of the same pipeline: rates, prices, states of an account, rules.
            on: columns of both streams that must be equal.
            versions_of: columns of `other`; a key has one newest version for each value of them,
                and a row is joined with all of these.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            how: "left" keeps rows without a version, "inner" drops them.
            keep: how long a version counts; by default until the next one. Without it the newest
                versions stay in the state.
            condition: called with an Arrow table of pairs, in the columns of the result; returns an
                array with a boolean for each. Other pairs are left out. It must depend on the rows
                alone.
            suffix: suffix of the other stream's columns whose names this stream has, too.

        Raises:
            PipelineError: a stream has no event time or is of another pipeline, `how` is not valid,
                or a column is both in `on` and in `versions_of`.
            ConfigurationError: `keep` is negative or cannot be read.

        Example:
            >>> in_euros = orders.join_as_of(payments, on="order_id", name="in_euros")
        """
        self._check_how(how, ("left", "inner"), name)
        keys, times = self._sides(other, on, name)
        subject = columns_of(versions_of)
        refuse_twice(self, name, (*keys, *subject))
        keep_ms = None if keep is None else to_ms(keep, "keep")
        upstream = (self._node, other._node)
        node = JoinAsOfNode(name, upstream, keys, subject, how, keep_ms, times, suffix, condition)
        return self._joined(node, self._time)

    def _joined(self, node: Node, time: EventTime | None) -> JoinedT:
        """Adds a node and returns the stage after it."""
        raise NotImplementedError

    def _check_how(self, how: str, known: Sequence[str], name: str) -> None:
        if how not in known:
            wrong = f"how={how!r} is not valid for a join."
            raise self._refusal(wrong, f"Use {', '.join(map(repr, known))}.", stage=name)

    def _sides(
        self, other: StageT, on: str | Sequence[str], name: str
    ) -> tuple[tuple[str, ...], tuple[EventTime, EventTime]]:
        """The keys, and the event times of both streams."""
        self._refuse_others((other,), name)
        keys = columns_of(on)
        refuse_twice(self, name, keys)
        return keys, (self._event_time(name), other._event_time(name))

    def _bounds(
        self, within: Duration | None, between: tuple[Duration, Duration] | None, name: str
    ) -> tuple[int, int]:
        """Bounds of the other stream's time minus this stream's, in ms."""
        if (within is None) == (between is None):
            raise self._refusal(
                "join() needs either within= or between=.",
                'For example within="1 hour", or between=("0 s", "1 hour").',
                stage=name,
            )
        if between is None:
            assert within is not None
            within_ms = to_ms(within, "within")
            return -within_ms, within_ms
        lower, upper = (signed_ms(bound, "between") for bound in between)
        if lower > upper:
            raise ConfigurationError(
                f"between: {between[0]!r} is more than {between[1]!r}.",
                job=self._builder.job,
                stage=name,
                cure="Write the least time first.",
            )
        return lower, upper
