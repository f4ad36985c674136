"""Values over the rows of a key, and patterns in them, without a function of the user's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from dagster_jet.core.ddl import plain_name, quoted_name
from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.pipeline.checks import refuse_moments, refuse_twice
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.stateful import StatefulMapNode
from dagster_jet.pipeline.user_functions import RowOrder
from dagster_jet.pipeline.with_functions import WithFunctions

if TYPE_CHECKING:
    from dagster_jet.operators.user.running import Call

StageT = TypeVar("StageT", bound=Point)
LateT = TypeVar("LateT", bound=Point)
DeadT = TypeVar("DeadT", bound=Point)
LateDeadT = TypeVar("LateDeadT", bound=Point)
_CALL = re.compile(r"\s*(\w+)\(\s*([^,()]+?)\s*(?:,\s*(\d+)\s*)?\)\s*")
_TYPES = {"sum": "type_of(sum({}))", "count": "bigint", "avg": "double"}


class OverRows(WithFunctions[StageT, LateT, DeadT, LateDeadT]):
    """A stream whose rows of one key are seen one after the other."""

    def running(
        self,
        *,
        name: str,
        ttl: Duration | None = None,
        order: RowOrder | None = None,
        **columns: str,
    ) -> LateT:
        """Adds columns with values over the rows of the key up to each row, as SQL's window
        functions do (`over (partition by key order by time)`).

        Functions: `lag(column)`, `lag(column, 3)`, `lead(column)`, `sum`, `count` (also of `*`),
        `avg`, `min`, `max`, `first` and `last`. Nulls are ignored, except by `lag` and `lead`.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            ttl: after so long without a row of the key its values begin anew. `lead` needs it: a
                row waits at most so long for the next one, and has null then.
            order: as in `map_stateful`.
            columns: calls by the name of the new column: ``total="sum(amount)"``.

        Raises:
            PipelineError: there is no column, or a call cannot be read or needs a `ttl`. When the
                job starts: a column is missing or has a type that the function does not take.
            ConfigurationError: `ttl` is negative or cannot be read.

        Example:
            >>> growth = rows.group_by("origin").running(
            ...     before="lag(delay)", total="sum(delay)", n="count(*)", name="growth"
            ... )
        """
        from dagster_jet.operators.user.running import LEAD, Running

        if not columns:
            wrong = "running() needs at least one column."
            raise self._refusal(wrong, 'For example n="count(*)".', stage=name)
        calls = {column: self._call(text, name) for column, text in columns.items()}
        leads = [column for column, call in calls.items() if call.function == LEAD]
        if leads and ttl is None:
            wrong = f"{leads[0]}: a row would wait for the next one of its key for ever."
            raise self._refusal(wrong, 'Give a ttl, for example ttl="1 day".', stage=name)
        running = Running(tuple(calls.items()))
        types = (
            f"{quoted_name(column)} "
            + _TYPES.get(call.function, "type_of({})").format(quoted_name(call.column))
            for column, call in calls.items()
        )
        in_event_order = self._in_event_order(order, name)
        time = self._time if ttl is None else self._event_time(name)
        ttl_ms = None if ttl is None else to_ms(ttl, "ttl")
        node = StatefulMapNode(
            name, (self._node,), self._keys, running, dict,
            running.without_next if leads else None, ttl_ms, ", ".join(["*", *types]), time,
            in_event_order, made_by="running",
        )  # fmt: skip
        kind: type[LateT] = self._kind(can_be_late=True, keeps_dead_letters=False)
        return self._after(node, kind, time)

    def _call(self, text: str, name: str) -> Call:
        from dagster_jet.operators.user.running import FUNCTIONS, LEAD, Call

        known, call = [*FUNCTIONS, LEAD], _CALL.fullmatch(text)
        function = call[1].lower() if call is not None else ""
        if call is None or function not in known or (call[3] and function != "lag"):
            raise self._refusal(
                f"{text!r} is no call that running() knows.",
                f"Use {', '.join(known)} of a column, for example sum(amount); compute "
                "expressions in a select() before.",
                stage=name,
            )
        if (call[2] == "*" and function != "count") or int(call[3] or 1) < 1:
            wrong = f"{text!r} has no column, or an offset less than 1."
            raise self._refusal(wrong, "Only count has an asterisk.", stage=name)
        return Call(function, plain_name(call[2]), int(call[3] or 1))

    def match(
        self, *, within: Duration, name: str, unless: str | None = None, **steps: str
    ) -> LateT:
        """Finds rows of a key that meet conditions one after the other, within a time.

        Each row that meets the first condition begins a match. The first later row that meets the
        next condition goes on with it; other rows between them do not matter. One row can belong to
        several matches. Rows are compared in order of event time, after the watermark has passed
        them, so results do not depend on how rows are divided into epochs.

        Columns: the keys, the event time of the last row, and each step's row as a struct.

        Args:
            within: largest time from the first row to the last.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            unless: SQL condition: a row of the key that meets it ends all open matches.
            steps: SQL conditions in their order, by the name of the step.

        Raises:
            PipelineError: there are fewer than two steps, the stream has no event time, or a
                condition has `date'today'` or the like. When the job starts: a condition depends on
                the epoch and its tasks.
            ConfigurationError: `within` is negative or cannot be read.

        Example:
            >>> bought = rows.group_by("flight").match(
            ...     delayed="delay > 60", early="delay < 0", within="1 day", name="recovered"
            ... )
        """
        from dagster_jet.operators.user.pattern import MEETS, ROW, Pattern

        if len(steps) < 2:
            wrong = "match() needs two steps or more."
            cure = "For example match(first=\"page = 'cart'\", then=\"page = 'paid'\", ...)."
            raise self._refusal(wrong, cure, stage=name)
        time = self._event_time(name)
        own = tuple(dict.fromkeys((*self._keys, time.column)))
        refuse_twice(self, name, [*own, *steps])
        conditions = [*steps.values(), unless or "false"]
        refuse_moments(self, name, conditions)
        meets = ", ".join(f"coalesce(({condition}), false)" for condition in conditions)
        columns = (*map(quoted_name, own), f"struct(*) AS {ROW}", f"array({meets}) AS {MEETS}")
        within_ms = to_ms(within, "within")
        pattern = Pattern(self._keys, time.column, tuple(steps), within_ms)
        kept = [f"{quoted_name(column)} type_of({quoted_name(column)})" for column in own]
        rows = [f"{quoted_name(step)} type_of({ROW})" for step in steps]
        node = StatefulMapNode(
            name, (self._node,), self._keys, pattern, list, None, within_ms,
            ", ".join([*kept, *rows]), time, True, columns=columns, made_by="match",
        )  # fmt: skip
        kind: type[LateT] = self._kind(can_be_late=True, keeps_dead_letters=False)
        return self._after(node, kind, time)
