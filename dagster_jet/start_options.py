"""Options of one start of a job: acts of an operator, done once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True)
class StartOptions:
    """Acts of one start; validated on construction. Restarts in the same process repeat them.

    Attributes:
        initial_snapshot: retained snapshot to go back to, or name of an exported one to begin
            with. The record notes it (`ExecutionRecord.rewound_to`), so it is done once.
        repeat_output: go back although sinks have output of later epochs, whose rows are then
            written again.
        accept_loss: continue although a sink has lost staged rows, or input has disappeared.
        refused_to_dead_letters: commit an epoch without the rows that a sink refuses, and send
            these to the sink's dead-letter sink.
        dropped_state: stages and sources whose saved state is dropped, if the pipeline cannot use
            it.
        renamed: stages, sources and sinks that have another name now: present name by former name.

    Raises:
        ConfigurationError: `initial_snapshot` is neither an id nor a name; or `dropped_state` is a
            text.
    """

    initial_snapshot: int | str | None = None
    repeat_output: bool = False
    accept_loss: bool = False
    refused_to_dead_letters: bool = False
    dropped_state: Iterable[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = self.initial_snapshot
        if isinstance(wanted, bool) or not isinstance(wanted, int | str | None) or wanted == "":
            raise ConfigurationError(
                "initial_snapshot: expected the id of a retained snapshot or the name of an "
                f"exported one, not {wanted!r}.",
            )
        if isinstance(wanted, str) and wanted.isdigit():  # ids may arrive as text
            object.__setattr__(self, "initial_snapshot", int(wanted))

        if isinstance(self.dropped_state, str):
            raise ConfigurationError(
                f"dropped_state: expected a list of names, not {self.dropped_state!r}."
            )

    def check(self, job: str, guarantee: Guarantee) -> None:
        """Refuses acts that a job with this guarantee cannot carry out.

        Raises:
            ConfigurationError: names the option.
        """
        if guarantee is Guarantee.NONE and self.initial_snapshot is not None:
            raise ConfigurationError(
                'initial_snapshot: needs a guarantee other than "none".', job=job
            )
        if self.refused_to_dead_letters and guarantee is not Guarantee.EXACTLY_ONCE:
            raise ConfigurationError(
                'refused_to_dead_letters: needs the guarantee "exactly-once".', job=job
            )
