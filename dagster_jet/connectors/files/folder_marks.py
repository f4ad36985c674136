"""Marks of an output folder: its sink, its store, and how it is partitioned."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dagster_jet.connectors.files.places.place import EPOCHS_FOLDER, OutputPlace
from dagster_jet.errors import ConfigurationError

OWNER = f"{EPOCHS_FOLDER}/.owner"
STORE = f"{EPOCHS_FOLDER}/.store"
PARTITION_BY = f"{EPOCHS_FOLDER}/.partition_by"


@dataclass(frozen=True)
class FolderMarks:
    """The marks, as one sink finds them. A missing mark admits any sink."""

    path: str
    place: OutputPlace
    job: str
    stage: str
    claims: bool
    """Whether missing marks are written."""
    former: str | None = None
    """Name that the sink had before, whose mark is its own."""

    def check_owner(self) -> None:
        """Raises `ConfigurationError` if the folder belongs to another sink."""
        owner = f"{self.job}/{self.stage}"
        other = self._found(OWNER, owner)
        if other is not None and other == f"{self.job}/{self.former}":
            if self.claims:
                self.place.remove(OWNER)  # a crash here leaves no mark, which admits the sink
                other = self._found(OWNER, owner)
            else:
                other = owner
        if other not in (None, owner):
            cure = "Give each sink a folder of its own."
            if other == "":
                cure = (
                    f"A crash has emptied {self.path}/{OWNER}: delete it if the folder is this "
                    "sink's."
                )
            elif other.startswith(f"{self.job}/"):
                former = other.removeprefix(f"{self.job}/")
                cure += (
                    f" If {former!r} is the former name of this sink, start with "
                    f"renamed={{{former!r}: {self.stage!r}}}."
                )
            raise self._refused(f"belongs to {other!r}.", cure)

    def check_contents(self, store: str | None, partition_by: tuple[str, ...]) -> None:
        """Raises `ConfigurationError` if the folder's files are of another store, or have other
        partitions."""
        other = None if store is None else self._found(STORE, store)
        if other not in (None, store):
            raise self._refused(
                f"belongs to '{self.job}/{self.stage}' of another store or namespace: of {other}; "
                f"this is {store}.",
                "Give each sink a folder of its own; if that store is gone, an empty one.",
            )
        mine = json.dumps(partition_by)
        other = self._found(PARTITION_BY, mine)
        if other not in (None, mine):
            # Readers take the columns from all folders, or from none.
            shown = (", ".join(json.loads(text)) or "nothing" for text in (other or "[]", mine))
            raise self._refused(
                "has files that are partitioned by {}; partition_by is now {}.".format(*shown),
                "Give partition_by its old value, or write to another folder. If this one has no "
                f"files any more, delete {self.path}/{PARTITION_BY}.",
            )

    def _found(self, name: str, mine: str) -> str | None:
        """Returns a mark; None if it is missing and not claimed.

        The first claimant's text is written atomically. It is durable on return, also if another
        job wrote it: a claim lost in a power failure would admit a second job to the folder.
        """
        found = self.place.read(name)  # usually exists, and then works on a full disk
        if found is None and self.claims:
            return (mine if self.place.create(name, mine) else self.place.read(name)) or ""
        return found

    def _refused(self, why: str, cure: str) -> ConfigurationError:
        return ConfigurationError(
            f"the output folder {self.path!r} {why}", job=self.job, stage=self.stage, cure=cure
        )
