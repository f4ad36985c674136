"""The bounded way out of a processor: one bucket per outbound edge, and one for the snapshot.

Source: Hazelcast Jet `Outbox` and `OutboxImpl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.dag.items import DONE, SnapshotBarrier, SnapshotEntry, Watermark

BATCH_LIMIT = 2048
"""Offers accepted in one call of a callback, so that one processor cannot keep the thread."""

_SAVE_ONLY_THERE = "Save only in save_to_snapshot() and snapshot_commit_prepare()."


class OutboundStream(Protocol):
    """Where a bucket is emptied to: the queues of an edge, or the writer of a snapshot."""

    def offer(self, item: object) -> bool:
        """Takes the item whole, or returns False; then the same item is offered again later.

        A stream that fans out remembers whom it has served already.
        """
        ...


class ContractError(Exception):
    """A processor broke the contract; the caller of the callback adds who it was and where."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} {cure}")
        self.message, self.cure = message, cure


@dataclass
class _Unfinished:
    item: object
    targets: tuple[int, ...]
    served: set[int] = field(default_factory=set)


class Outbox:
    """Takes what a processor emits, or refuses it.

    After a refusal the callback returns False, and when it is called again it offers the *same*
    item to the *same* ordinals; what some edges have had already is not sent to them twice. Items
    must not be changed once they are offered: the receiver gets the object itself. Not thread-safe.

    Args:
        edges: one stream per outbound edge, by ordinal.
        snapshot: receives `SnapshotEntry` items and barriers; None: nothing is ever saved.
        batch_limit: offers accepted per call.
    """

    def __init__(
        self,
        edges: Sequence[OutboundStream],
        snapshot: OutboundStream | None = None,
        *,
        batch_limit: int = BATCH_LIMIT,
    ) -> None:
        self._edges = tuple(range(len(edges)))
        self._streams = [*edges, *([snapshot] if snapshot is not None else [])]
        self._has_snapshot = snapshot is not None
        self._batch_limit = batch_limit
        self._left_in_batch = batch_limit
        self._unfinished: _Unfinished | None = None
        self._refused_in_call = False
        self._blocked = False
        self._may_emit = self._may_save = True
        self._why_not = self._cure = ""
        self._saved_keys: set[object] = set()
        """Of the snapshot in progress."""
        self._last_watermark: Watermark | None = None
        self._accepted = 0

    # --- for processors -------------------------------------------------------------------------

    @property
    def edge_count(self) -> int:
        """Outbound edges; without any, every item is taken and dropped."""
        return len(self._edges)

    @property
    def has_unfinished_item(self) -> bool:
        """An item was refused, at least by some edge, and has to be offered again."""
        return self._unfinished is not None

    @property
    def last_watermark(self) -> Watermark | None:
        """The last watermark that went out on all edges."""
        return self._last_watermark

    def offer(self, item: object, *ordinals: int) -> bool:
        """Emits an item on the given outbound edges; without ordinals, on all of them.

        Returns:
            True: taken by all. False: return False from the callback, and offer the same again.

        Raises:
            ContractError: offered after a refusal in the same call, another item or other ordinals
                than were refused, a watermark that does not grow, or at a time when emitting is not
                allowed. The job fails and names the processor.
        """
        if not self._may_emit:
            raise ContractError(
                f"emitted {_short(item)}, which is not allowed {self._why_not}.",
                "Keep it and emit it in the next process(), try_process() or complete().",
            )
        targets = self._targets(ordinals)
        if item is None:
            raise ContractError("offered None.", "An item is anything but None.")
        if item is DONE or isinstance(item, SnapshotBarrier | SnapshotEntry):
            raise ContractError(f"offered {_short(item)}.", "That is the runtime's to send.")
        if isinstance(item, Watermark):
            self._check_watermark(item, ordinals)
        return self._offer(item, targets)

    def offer_to_snapshot(self, key: object, value: object) -> bool:
        """Saves an entry; only inside `save_to_snapshot` and `snapshot_commit_prepare`.

        The entry returns to the instance that owns the key's partition; to all instances with
        `broadcast_key`. It is serialised here and now: the value may be changed afterwards.
        An instance saves a key once per snapshot, also a broadcast key.

        Returns:
            True: taken. False: return False from the callback, and offer the same entry again.

        Raises:
            ContractError: as `offer`.
        """
        if not self._may_save:
            raise ContractError(
                f"saved an entry with key {_short(key)} {self._why_not}.", self._cure
            )
        if not self._has_snapshot:
            raise ContractError("saved an entry, but this outbox has no snapshot.", "Give it one.")
        if self._unfinished is None and self._is_saved(key):
            raise ContractError(
                f"saved a second entry with key {_short(key)}.",
                "Give each entry of a snapshot a key of its own, for example (key, number).",
            )
        taken = self._offer(SnapshotEntry(key, value), (len(self._edges),))
        if taken:
            with suppress(TypeError):
                self._saved_keys.add(key)
        return taken

    # --- for the runtime ------------------------------------------------------------------------

    def begin_call(
        self,
        *,
        may_emit: bool = True,
        may_save: bool = True,
        why_not: str = "here",
        cure: str = _SAVE_ONLY_THERE,
    ) -> None:
        """A callback is about to be called: its batch is fresh, and this is what it may do.

        Args:
            why_not: why it may not emit, or not save.
            cure: of saving where it may not.
        """
        self._left_in_batch = self._batch_limit
        self._refused_in_call = False
        self._may_emit, self._may_save = may_emit, may_save
        self._why_not, self._cure = why_not, cure

    def begin_snapshot(self) -> None:
        """What was saved so far belongs to an earlier snapshot."""
        self._saved_keys.clear()

    @property
    def has_refused(self) -> bool:
        """In the call that was begun last."""
        return self._refused_in_call

    def block(self) -> None:
        """Only the unfinished item may still be finished: a snapshot waits for a clean cut."""
        self._blocked = True

    def unblock(self) -> None:
        self._blocked = False

    def offer_in_band(self, item: object, *, to_snapshot: bool) -> bool:
        """Sends the runtime's own item on every edge, and to the snapshot's writer."""
        targets = self._edges
        if to_snapshot and self._has_snapshot:
            targets = (*targets, len(self._edges))
        self.begin_call()
        return self._offer(item, targets)

    def take_accepted(self) -> int:
        """How often a stream took something since the last time this was asked."""
        accepted, self._accepted = self._accepted, 0
        return accepted

    # --- inside ---------------------------------------------------------------------------------

    def _is_saved(self, key: object) -> bool:
        try:
            return key in self._saved_keys
        except TypeError:  # not hashable: whoever serialises it will say so
            return False

    def _targets(self, ordinals: tuple[int, ...]) -> tuple[int, ...]:
        if not ordinals:
            return self._edges
        for ordinal in ordinals:
            if ordinal not in self._edges:
                raise ContractError(
                    f"offered to ordinal {ordinal}, but there are {len(self._edges)} outbound"
                    " edges.",
                    "Ordinals count from 0; leave them out to offer to all edges.",
                )
        return ordinals

    def _check_watermark(self, watermark: Watermark, ordinals: tuple[int, ...]) -> None:
        if ordinals and set(ordinals) != set(self._edges):
            raise ContractError(
                f"offered watermark {watermark.timestamp_ms} to some edges only.",
                "Offer watermarks without ordinals: they go out on every edge.",
            )
        last = self._last_watermark
        if last is not None and watermark <= last:
            raise ContractError(
                f"emitted watermark {watermark.timestamp_ms} after {last.timestamp_ms}.",
                "Watermarks strictly increase: forward those that try_process_watermark() is given,"
                " once each.",
            )

    def _offer(self, item: object, targets: tuple[int, ...]) -> bool:
        unfinished = self._unfinished
        if self._refused_in_call:
            raise ContractError(
                f"offered {_short(item)} after the outbox had refused an item in the same call.",
                "When offer() returns False, return False from the callback.",
            )
        if unfinished is not None:
            if unfinished.targets != targets or not _same(item, unfinished.item):
                raise ContractError(
                    f"offered {_short(item)} although {_short(unfinished.item)} was refused before"
                    " and is still owed.",
                    "Offer the refused item again, to the same ordinals, before any other; an"
                    " Emitter does it.",
                )
        elif self._blocked:
            self._refused_in_call = True
            return False
        else:
            unfinished = _Unfinished(item, targets)
        if self._left_in_batch > 0:
            self._left_in_batch -= 1
            for target in targets:
                if target not in unfinished.served and self._streams[target].offer(item):
                    unfinished.served.add(target)
                    self._accepted += 1
            if len(unfinished.served) == len(set(targets)):
                self._unfinished = None
                if isinstance(item, Watermark):
                    self._last_watermark = item
                return True
        self._unfinished, self._refused_in_call = unfinished, True
        return False


def _same(item: object, refused: object) -> bool:
    """The same object, or an equal one: a processor may compute its item anew."""
    if item is refused:
        return True
    if type(item) is not type(refused):
        return False
    if isinstance(item, tuple | list) and isinstance(refused, tuple | list):
        return len(item) == len(refused) and all(map(_same, item, refused))
    if isinstance(item, dict) and isinstance(refused, dict):
        return item.keys() == refused.keys() and all(_same(item[k], refused[k]) for k in item)
    try:
        if item != item and refused != refused:  # noqa: PLR0124 - as NaN is
            return True
        return bool(item == refused)
    except (TypeError, ValueError):  # arrays and frames compare element by element
        return False


def _short(item: object) -> str:
    text = repr(item)
    return text if len(text) <= 120 else f"{text[:117]}..."
