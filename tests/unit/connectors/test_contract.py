"""A misspelt or half-implemented part of a connector is refused when its class is created."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_jet.connectors.kafka.kafka_reader import KafkaReader
from dagster_jet.contract import (
    Acknowledges,
    Committer,
    ConnectorPart,
    Held,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    Table,
)
from dagster_jet.core.guarantee import Guarantee

PARTS = (Source, SourceReader, Sink, SinkWriter, Committer, Table)


def made(base: type, *names: str, **members: Any) -> type:
    """A class with these members; those that are only named are methods."""
    methods = dict.fromkeys(names, lambda self, *_, **__: None)
    return type("Mine", (base,), {**methods, **members})


@pytest.mark.parametrize(
    ("base", "present", "missing"),
    [
        (SourceReader, ("take_journal",), "whole_journal"),
        (SourceReader, ("partitions",), "is_partitioned"),
        (SourceReader, ("acknowledge", "unacknowledged"), "acknowledges, restore_unacknowledged"),
        (SourceReader, ("backlog",), "mark_backlog"),
        (SourceReader, ("mark_backlog",), "backlog"),
        (SourceReader, ("fates", "take_gone", "shown", "check_input"), "rereads_input"),
        (SourceReader, ("split_parameters",), "prepared_frame"),
        (SourceReader, ("read_only",), "skips_columns"),
        (Sink, ("destination",), "reopen"),
        (Sink, ("reopen",), "destination"),
    ],
)
def test_a_part_of_a_capability_is_refused(
    base: type, present: tuple[str, ...], missing: str
) -> None:
    with pytest.raises(TypeError, match=f"Mine has .*, but not {missing}: .* {base.__name__}"):
        made(base, *present)


@pytest.mark.parametrize(
    ("switch", "value", "missing"),
    [
        ("is_partitioned", True, "partitions"),
        (
            "acknowledges",
            Acknowledges.MESSAGES,
            "unacknowledged, restore_unacknowledged, acknowledge",
        ),
        ("rereads_input", True, "fates, take_gone, shown, check_input"),
        ("skips_columns", True, "read_only"),
    ],
)
def test_a_switch_without_its_methods_is_refused(switch: str, value: Any, missing: str) -> None:
    with pytest.raises(TypeError, match=f"Mine has {switch}, but not {missing}:"):
        made(SourceReader, **{switch: value})


def test_a_method_misspelt_beside_its_switch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"partition is not part of the contract .* 'partitions'"):
        made(SourceReader, "partition", is_partitioned=True)


@pytest.mark.parametrize(
    ("base", "wrong", "right"),
    [
        (Source, "checks_snapshot_interval", "check_snapshot_interval"),
        (Source, "with_stores", "with_store"),
        (Source, "at_starts", "at_start"),
        (SourceReader, "reactions", "reaction"),
        (SourceReader, "locate_rows", "locate_row"),
        (SourceReader, "take_losts", "take_lost"),
        (SourceReader, "verfy", "verify"),
        (Sink, "claim_a_place", "claim_place"),
        (Sink, "check_column", "check_columns"),
        (Sink, "refuses", "refused"),
        (Sink, "helds", "held"),
        (Sink, "max_guarantees", "max_guarantee"),
        (Committer, "has_commited", "has_committed"),
        (Committer, "give_up_the_place", "give_up_place"),
        (Committer, "closes", "close"),
        (SinkWriter, "closed", "close"),
        (Table, "locate_bad_rows", "locate_bad_row"),
    ],
)
def test_a_misspelt_method_is_refused(base: type, wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"Mine.{wrong} .* contract of .*{right!r}, correct its"):
        made(base, wrong)


@pytest.mark.parametrize("base", PARTS)
def test_what_every_connector_has_is_abstract(base: Any) -> None:
    with pytest.raises(TypeError, match="abstract method"):
        made(base)()


def test_a_switch_that_says_no_means_no() -> None:
    class Silent(KafkaReader):
        acknowledges = Acknowledges.NOTHING
        is_partitioned = False

    class More(Silent):
        pass

    assert More.acknowledges is Acknowledges.NOTHING and not More.is_partitioned


@pytest.mark.parametrize("base", PARTS)
def test_names_of_ones_own_are_free(base: type) -> None:
    assert issubclass(
        made(base, "parted", "area", "rows", "planned", "_take_journal"), ConnectorPart
    )


def test_capabilities_that_are_complete_are_taken() -> None:
    assert made(SourceReader, "take_journal", "whole_journal", "mark_backlog", "backlog")
    assert made(Sink, "destination", reopen=classmethod(lambda cls, _: None))
    assert made(Sink, held=lambda self: Held(2), max_guarantee=Guarantee.NONE)
