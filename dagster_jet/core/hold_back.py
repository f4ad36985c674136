"""How long a sink's staged rows wait for more of them, so that one commit has larger files."""

from __future__ import annotations

from dataclasses import dataclass

_FILES_MAX = 1_000
"""Staged files that wait at most: each manifest names all of them."""


@dataclass(frozen=True)
class HoldBack:
    """Bounds within which snapshots leave the staged rows of a sink for a later one."""

    min_bytes: int
    """Size of the staged files from which on they are committed."""
    max_delay_ms: int
    """Age of the oldest one from which on they are committed."""

    def waits(self, files: int, bytes: int, age_ms: int) -> bool:
        """Returns whether staged files of a sink wait.

        Example:
            >>> rule = HoldBack(min_bytes=1_000, max_delay_ms=60_000)
            >>> rule.waits(3, 999, 59_999), rule.waits(3, 1_000, 0), rule.waits(3, 1, 60_000)
            (True, False, False)
        """
        return files < _FILES_MAX and bytes < self.min_bytes and age_ms < self.max_delay_ms
