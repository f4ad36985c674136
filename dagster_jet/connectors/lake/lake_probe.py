"""Questions about the place of a table, for the probes of Delta Lake and Iceberg."""

from __future__ import annotations

import secrets

from dagster_jet.connectors.lake.data_folder import DataFolder
from dagster_jet.core.answers import Answer, answered
from dagster_jet.errors import ConfigurationError

_FITS = "Can a sink write to the table exactly once?"


def writes_files(folder: DataFolder, name: str) -> Answer:
    """Writes a file, and removes it.

    Args:
        name: the folder's, for the answer.
    """
    path, why = f"_probe-{secrets.token_hex(6)}", ""
    try:
        file = folder.create(path)
        file.file.write(b"probe")
        folder.finish(path, file)
        folder.remove([path])
    except OSError as error:
        why = str(error)
    return answered(
        "May files be written and removed?",
        not why,
        yes=f"A file was written to {name} and removed.",
        no=f"{name}: {why}.",
        cure="Correct credentials and permissions.",
        needed=True,
    )


def creates_once(folder: DataFolder, name: str) -> Answer:
    """Tries whether an object is created only if there is none."""
    refused: ConfigurationError | None = None
    try:
        folder.check("", "")
    except ConfigurationError as error:
        refused = error
    return answered(
        "Does it refuse to create a version twice?",
        refused is None,
        yes=f"{name} keeps the condition of a write.",
        no="" if refused is None else refused.message,
        cure="" if refused is None else refused.cure or "",
        needed=True,
    )


def fits(unfit: str | None, *, is_there: bool) -> Answer:
    """
    Args:
        unfit: why a sink must not write to the table.
    """
    return answered(
        _FITS,
        unfit is None,
        yes="Markers of commits stay in it." if is_there else "There is none: a start creates it.",
        no=f"{unfit}.",
        cure="Remove what is named here from the table, or write to another one.",
        needed=True,
    )
