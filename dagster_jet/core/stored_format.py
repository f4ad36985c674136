"""Format numbers of what is stored. Every format starts at 1 with the first release."""

from __future__ import annotations

from dagster_jet.errors import StoreMismatchError


def check_format(
    what: str, found: int, known: int, *, job: str | None = None, stage: str | None = None
) -> None:
    """Refuses what a newer version has written.

    Args:
        what: the stored thing, as the subject of a sentence.
        found: its format.
        known: the newest format that can be read.
        job: its job, if it has one.
        stage: its stage, if it has one.

    Raises:
        StoreMismatchError: `found` is newer.
    """
    if found > known:
        raise StoreMismatchError(
            f"{what} has format {found}, this version reads up to {known}.",
            job=job,
            stage=stage,
            cure="Upgrade dagster-jet on this machine to the version that wrote it.",
        )
