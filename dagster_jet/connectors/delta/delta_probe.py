"""Probes whether a place can have a Delta Lake table that sinks write to, and the table in it."""

from __future__ import annotations

from collections.abc import Mapping

from dagster_jet.connectors.delta.fitness import unfit
from dagster_jet.connectors.delta.log_folder import check_place, options_of
from dagster_jet.connectors.delta.table_log import TableLog, reading_errors_named
from dagster_jet.connectors.files.places.location import absolute, scheme_of, storage_options
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.lake_probe import creates_once, fits, writes_files
from dagster_jet.core.answers import Answer
from dagster_jet.core.secret import Url, text_of

SCHEME = "delta+"


def probe(url: Url, storage: Mapping[str, str]) -> list[Answer]:
    """Returns all answers about `delta+s3://bucket/folder` or `delta+file:///folder`.

    Args:
        storage: `storage_options` of the sink; values may name secrets.

    Raises:
        JetError: the place or an option is not valid, or the place does not answer.
    """
    place = absolute(text_of(url).removeprefix(SCHEME))
    check_place(place)
    options = storage_options(place, storage)
    with reading_errors_named(place, "", ""):
        folder = data_folder(place, options)
        log = TableLog.open(place, options_of(folder))
        answers = [] if log is None else [writes_files(folder, place)]
        if scheme_of(place) != "file":
            answers.append(creates_once(folder, place))
        answers.append(fits(None if log is None else unfit(log), is_there=log is not None))
    return answers
