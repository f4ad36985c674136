"""The bounded output of a processor: one bucket per outbound edge, and one for the snapshot.

Source: Hazelcast Jet `Outbox` and `OutboxImpl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from dagster_jet.dag.items import DONE, SnapshotBarrier, SnapshotEntry, Watermark

BATCH_LIMIT = 2048
"""Offers accepted in one call of a callback, so that no processor monopolises the thread."""

_SAVE_ONLY_THERE = "Save only in save_to_snapshot() and snapshot_commit_prepare()."


class OutboundStream(Protocol):
    """Target of a bucket: the queues of an edge, or the writer of a snapshot."""

    def offer(self, item: object) -> bool:
        """Accept the item completely, or return False; the same item is then offered again later.

        A stream that fans out remembers the targets that have accepted it.
        """
        ...


class ContractError(Exception):
    """A processor broke the contract; the caller of the callback adds vertex and callback."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(f"{message} {cure}")
        self.message, self.cure = message, cure


@dataclass
class _Unfinished:
    item: object
    targets: tuple[int, ...]
    served: set[int] = field(default_factory=set)


class Outbox:
    """Accepts or refuses the output of a processor.

    After a refusal the callback returns False, and when it is called again it offers the *same*
    item to the *same* ordinals; edges that have accepted it do not receive it twice. Items must
    not be changed after the offer: the receiver gets the object itself. Not thread-safe.

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
        """Keys saved in the snapshot in progress."""
        self._last_watermark: Watermark | None = None
        self._accepted = 0

    # --- for processors -------------------------------------------------------------------------

    @property
    def edge_count(self) -> int:
        """Number of outbound edges; without any, every item is accepted and dropped."""
        return len(self._edges)

    @property
    def has_unfinished_item(self) -> bool:
        """Whether an item was refused, at least by some edge, and must be offered again."""
        return self._unfinished is not None

    @property
    def last_watermark(self) -> Watermark | None:
        """The last watermark that was sent on all edges."""
        return self._last_watermark

    def offer(self, item: object, *ordinals: int) -> bool:
        """Emit an item on the given outbound edges; without ordinals, on all of them.

        Returns:
            True: accepted by all. False: return False from the callback, and offer the same again.

        Raises:
            ContractError: the item was offered after a refusal in the same call, differs from the
                refused item or ordinals, is a watermark that does not grow, or emitting is not
                allowed now. The job fails and names the processor.
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
        """Save an entry; only inside `save_to_snapshot` and `snapshot_commit_prepare`.

        The entry is restored to the instance that owns the key's partition; with `broadcast_key` to
        all instances. It is serialised immediately: the value may be changed afterwards. An
        instance saves a key once per snapshot, also a broadcast key.

        Returns:
            True: accepted. False: return False from the callback, and offer the same entry again.

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
        """Prepare for a callback: reset its batch, and set its rights.

        Args:
            why_not: the reason why it may not emit, or not save.
            cure: the advice if it saves without the right.
        """
        self._left_in_batch = self._batch_limit
        self._refused_in_call = False
        self._may_emit, self._may_save = may_emit, may_save
        self._why_not, self._cure = why_not, cure

    def begin_snapshot(self) -> None:
        """Begin a snapshot: keys saved so far belong to an earlier one."""
        self._saved_keys.clear()

    @property
    def has_refused(self) -> bool:
        """Whether an item was refused in the current call."""
        return self._refused_in_call

    def block(self) -> None:
        """Accept only the unfinished item: a snapshot waits for it."""
        self._blocked = True

    def unblock(self) -> None:
        self._blocked = False

    def offer_in_band(self, item: object, *, to_snapshot: bool) -> bool:
        """Send the runtime's own item on every edge, and to the snapshot's writer."""
        targets = self._edges
        if to_snapshot and self._has_snapshot:
            targets = (*targets, len(self._edges))
        self.begin_call()
        return self._offer(item, targets)

    def take_accepted(self) -> int:
        """Return how many items streams have accepted since the last call."""
        accepted, self._accepted = self._accepted, 0
        return accepted

    # --- private --------------------------------------------------------------------------------

    def _is_saved(self, key: object) -> bool:
        try:
            return key in self._saved_keys
        except TypeError:  # not hashable: its serialisation will report it
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
    """Whether the items are identical or equal: a processor may compute its item again."""
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
