"""A line at the bottom of a terminal that is redrawn repeatedly; other output goes above it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TextIO

SWITCH = "DAGSTER_JET_PROGRESS"
"""Environment variable; ``off`` disables the line, whatever standard error is."""
DRAW_EVERY_S = 0.25
_ERASE = "\r\x1b[K"
_taken = threading.Lock()
"""Allows one line per process, however many threads wait for jobs."""


class TerminalLine:
    """Draws the line. Any code may write to standard output and standard error meanwhile: the line
    is erased first and drawn again later. Output of other processes (the JVM) begins behind it and
    stays whole.

    Args:
        stream: the terminal.
        seconds: a monotonic clock.
        is_seen: whether the line may be drawn; the process may be in the background meanwhile.
    """

    def __init__(
        self,
        stream: TextIO,
        seconds: Callable[[], float] = time.monotonic,
        is_seen: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stream, self._seconds, self._is_seen = stream, seconds, is_seen
        self._write = stream.write
        self._lock = threading.RLock()
        self._drawn_at = float("-inf")
        self._is_drawn = False
        self._is_interrupted = False
        """Another writer has an unterminated line on the terminal."""
        self.was_drawn = False
        """Whether the line was drawn at least once."""

    def draw(self, text: str) -> None:
        """Replaces the line's text; a few times a second at most."""
        with self._lock:
            now = self._seconds()
            if self._is_interrupted or now - self._drawn_at < DRAW_EVERY_S:
                return
            if not self._is_seen():
                return
            self._drawn_at = now
            # The blank separates the line from another process's output, which begins behind it.
            self._put(f"{_ERASE}{text[: self._width() - 2]} ")
            self._is_drawn = self.was_drawn = True

    def end(self, text: str) -> None:
        """Replaces the line by a final text and a new line."""
        with self._lock:
            begin = "\n" if self._is_interrupted else _ERASE
            self._put(f"{begin}{text}\n")
            self._is_drawn = self._is_interrupted = False

    def erase(self) -> None:
        """Removes the line."""
        with self._lock:
            if self._is_drawn:
                self._put(_ERASE)
                self._is_drawn = False

    def above(self, write: Callable[[str], Any], text: str) -> Any:
        """Writes another writer's text above the line; its lines may come in several pieces."""
        with self._lock:
            self.erase()
            if text:
                self._is_interrupted = not text.endswith("\n")
            return write(text)

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._write(text)
            self._stream.flush()

    def _width(self) -> int:
        try:
            return max(20, os.get_terminal_size(self._stream.fileno()).columns or 80)
        except (OSError, ValueError):
            return 80


@contextmanager
def terminal_line(wanted: bool = True) -> Iterator[TerminalLine | None]:
    """Yields the line while this thread waits; None if nobody would see it, or it is not wanted.

    There is no line on a non-terminal, on a simple terminal (``TERM=dumb``), in a background
    process, or for a second thread that waits.
    """
    stream = sys.stderr
    if not wanted or not _is_seen(stream) or not _taken.acquire(blocking=False):
        yield None
        return
    line = TerminalLine(stream, is_seen=partial(_is_seen, stream))
    try:
        with _written_above(line, sys.stderr), _written_above(line, sys.stdout):
            yield line
    finally:
        line.erase()
        _taken.release()


def _is_seen(stream: TextIO | None) -> bool:
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "false", "no"):
        return False
    try:
        if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
            return False
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False


@contextmanager
def _written_above(line: TerminalLine, stream: Any) -> Iterator[None]:
    """Patches the stream object itself, because loggers hold it."""
    own, is_changed = getattr(stream, "__dict__", {}).get("write"), False
    with suppress(AttributeError, TypeError, ValueError):  # a stream that cannot be changed
        if stream.isatty():
            stream.write = partial(line.above, stream.write)
            is_changed = True
    try:
        yield
    finally:
        if own is not None:
            stream.write = own
        elif is_changed:
            del stream.write
