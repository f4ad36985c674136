"""Compares a listing with the memory of files read before."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from dagster_jet.connectors.files.input_folder import InputFolder, shown_time
from dagster_jet.connectors.files.memory import FileMemory, mark_of
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.core.durations import in_words
from dagster_jet.errors import InputLostError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compared:
    """Classified files of a listing."""

    unread: Sequence[InputFile]
    """Files that were not read completely, in reading order."""
    recognised: Sequence[InputFile]
    """Files that were read and now have another time, but the same content."""
    there: frozenset[str]
    """Paths of all files."""


@dataclass
class Recognition:
    """Recognises the files of one source. Only used by polls, one at a time."""

    folder: InputFolder
    memory: FileMemory
    _listed: frozenset[str] | None = field(default=None, init=False)
    """Paths of the last listing."""
    _was_new: frozenset[str] = field(default=frozenset(), init=False)
    """Paths in the last listing that were certainly new."""

    def compare(
        self, files: Sequence[InputFile], without_checksum: Collection[str], bytes_per_row: float
    ) -> Compared:
        """Classifies the files of a listing.

        Args:
            files: the listing.
            without_checksum: paths that are being read; their changes are detected elsewhere.

        Raises:
            SourceError: a file that was read has changed, or it is unknown whether it was read, or
                a new file has a name that is not UTF-8.
            InputLostError: a file that was read in part is gone.
        """
        unread: list[InputFile] = []
        recognised: list[InputFile] = []
        passed: list[InputFile] = []
        for file in files:
            known = self.memory.get(file.path)
            if known is None:
                if self.memory.is_passed(file):
                    passed.append(file)
                else:
                    self._check_name(file.path)
                    unread.append(file)
                continue
            if known.read_to is not None:
                unread.append(file)
            if known is not file and known != file and file.path not in without_checksum:
                recognised.append(self._recognise(known, file))
        self._name_late(passed)
        unread = sorted(filter(self._is_new, unread), key=mark_of)
        self._was_new = frozenset(file.path for file in unread)
        self._listed = frozenset(file.path for file in files)
        if gone := self.gone(self.memory.unfinished - self._listed):
            raise self._input_lost(gone[0], bytes_per_row)
        return Compared(unread, recognised, self._listed)

    def _check_name(self, path: str) -> None:
        """Raises `SourceError` for a name that no snapshot or row can have."""
        try:
            path.encode()
        except UnicodeEncodeError:
            raise self.folder.refused(
                f"the name of the file {os.fsencode(path)!r} is not UTF-8.",
                None,
                "Rename it, or its folder.",
            ) from None

    def gone(self, paths: Collection[str]) -> list[InputFile]:
        """Returns the files among these that were read in part and no longer exist."""
        gone = []
        for path in sorted(paths):
            known = self.memory.get(path)
            if known is not None and known.read_to is not None:
                gone += [] if self.folder.find(path) else [known]
        return gone

    def _input_lost(self, file: InputFile, bytes_per_row: float) -> InputLostError:
        return InputLostError(
            f"the file was removed while it was read: {file.shown(bytes_per_row)}.",
            job=self.folder.job,
            stage=self.folder.stage,
            position=file.path,
            cure="Put it back unchanged (cp -p) and start again. Without it the rest of its rows "
            "is missing. Delete files only when a committed snapshot has all of their rows "
            "(Job.consumed_files()).",
        )

    def _is_new(self, file: InputFile) -> bool:
        """Returns whether a file is certainly unread; False if only a stale listing has it. Raises
        `SourceError` if it may have been read and forgotten."""
        if not self.memory.may_have_been_read(file) or file.path in self._was_new:
            return True
        if self.memory.get(file.path) is not None:
            return True  # it is being read
        if self.folder.find(file.path) is None:
            return False  # a stale listing
        raise self.folder.refused(
            f"the file may have been read before: its time is {shown_time(file.mtime_ns)}, and "
            "the job no longer remembers which files of that age it has read, because they were "
            f"gone for {in_words(self.memory.remember_ms)}.",
            file.path,
            "If its rows are new, give it a new time (touch). If it was read before and came "
            "back, for example from a backup, remove it. sources.files(remember=...) sets how "
            "long read files are remembered.",
        )

    def _name_late(self, passed: Sequence[InputFile]) -> None:
        """Warns of files excluded by their age that are new since the last listing."""
        listed = self._listed
        late = [] if listed is None else [file.path for file in passed if file.path not in listed]
        if late:
            assert self.memory.max_file_age_ms is not None
            _logger.warning(
                "job %r, stage %r: %d files are older than max_file_age, %s, and are not read, "
                "such as %s. To read them, give them a new time (touch).",
                self.folder.job,
                self.folder.stage,
                len(late),
                in_words(self.memory.max_file_age_ms),
                min(late),
            )

    def _recognise(self, known: InputFile, file: InputFile) -> InputFile:
        """Checks a file that was read and has another time by now, after `touch` or a restored
        copy. Raises `SourceError` if its content has changed or cannot be compared."""
        cure = "Put the old content back, and the new rows into a file of their own: files must be "
        cure += "finished before they are moved in."
        at = shown_time(file.mtime_ns)
        if known.size != file.size:
            now = f"now {file.size} bytes"
        elif known.etag:
            if known.etag == file.etag:
                return file
            now = f"other content, by its ETag, at {at}"
        elif known.checksum is None:
            now = f"at {at}, it was of {shown_time(known.mtime_ns)}"
            cure += " If it is the old content, give it its old time (touch -d): the snapshot was "
            cure += "taken without checksums."
        else:
            with self.folder.errors_named(file.path):
                if self.folder.place.checksum(file) == known.checksum:
                    return replace(file, checksum=known.checksum)
            now = f"other content, at {at}"
        raise self.folder.refused(
            f"the file was read with {known.size} bytes and has changed since ({now}).",
            file.path,
            cure,
        )
