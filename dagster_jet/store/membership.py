"""Changes of a store's members, from one metadata to the next. Pure.

A change takes three decisions, each one write of the register "store":

1. ``changed`` lists the members of the store from now on, names the table to move towards, and
   drops from the current table the members whose data is gone. The backups of their partitions are
   thereby promoted in place. Then all registers are moved.
2. ``with_registers_moved`` records that they have moved: writers of the former configuration
   cannot decide anything any more. Then data is copied.
3. ``finished`` records that all data has arrived.

Between decisions any process may continue, any number of times (``administration.py``). A change
may follow one whose registers have moved and that is not finished: the holders stay those that
count, only the target changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dagster_jet.core.first_of import first_of
from dagster_jet.errors import ConfigurationError, StoreCorruptedError
from dagster_jet.store.map.partition_table import (
    PartitionTable,
    with_member_added,
    with_member_removed,
)
from dagster_jet.store.metadata import StoreMetadata


def changed(
    metadata: StoreMetadata,
    *,
    joining: Mapping[str, str] | None = None,
    leaving: Collection[str] = (),
    lost: Collection[str] = (),
    mover: str = "",
    accept_loss: bool = False,
) -> StoreMetadata:
    """Return the metadata with which a change begins.

    Args:
        metadata: the store's metadata, with its registers moved; copies of another change may still
            be under way.
        joining: member ids with the identities they show. A current member with another identity
            has lost its data: it stays, and all its data is copied to it again.
        leaving: members to give up; their copies count until they are copied.
        lost: members whose data is gone. Those that do not join again leave the store.
        mover: see ``StoreMetadata.mover``.
        accept_loss: continue although partitions are lost; they begin empty.

    Raises:
        ConfigurationError: ``leaving`` or ``lost`` names no member, or too few members would stay.
        StoreCorruptedError: partitions have no copy left; lists them by number.
    """
    if not metadata.registers_have_moved:
        raise ValueError("registers are still moving: finish that first")
    joining = dict(joining or {})
    known = metadata.identities
    ids = set(dict(metadata.members))
    gone = set(lost) | {m for m, identity in joining.items() if known.get(m, identity) != identity}
    out = (set(leaving) | gone) - joining.keys()
    strangers = sorted(out - known.keys())
    if strangers:
        raise ConfigurationError(
            f"{', '.join(strangers)} is not a member of the store.",
            cure="See 'dagster-jet store status' for the members.",
        )
    stay = (ids - out) | joining.keys()
    if len(stay) < metadata.backup_count + 1 and out & ids:
        raise ConfigurationError(
            f"without {', '.join(sorted(out & ids))} the store would have {len(stay)} members, "
            f"backup_count={metadata.backup_count} needs {metadata.backup_count + 1}.",
            cure="Add another member first: dagster-jet store add URL.",
        )
    aim = metadata.target or metadata.table
    for member_id in sorted(joining.keys() - set(aim.members)):
        aim = with_member_added(aim, member_id)
    for member_id in sorted(out & set(aim.members)):
        aim = with_member_removed(aim, member_id)

    kept = [tuple(m for m in held if m not in gone) for held in metadata.table.replicas]
    empty = [partition for partition, held in enumerate(kept) if not held]
    if empty and not accept_loss:
        raise _lost(empty, gone)
    for partition in empty:
        kept[partition] = aim.replicas[partition]  # nothing to copy: it begins empty
    holding = {member_id for held in kept for member_id in held}
    version = max(metadata.table.version, aim.version) + 1
    table = PartitionTable(
        version, tuple(kept), tuple(sorted(holding | stay)), metadata.backup_count
    )
    return replace(
        metadata,
        configuration=metadata.configuration + 1,
        members=tuple(sorted({m: i for m, i in {**known, **joining}.items() if m in stay}.items())),
        previous=metadata.members,
        leaving=tuple(sorted((m, known[m]) for m in holding - stay)),
        table=table,
        target=replace(aim, version=version + 1),
        mover=mover,
    )


def with_registers_moved(metadata: StoreMetadata) -> StoreMetadata:
    """Return the metadata after all registers have moved."""
    return replace(metadata, previous=())


def finished(metadata: StoreMetadata) -> StoreMetadata:
    """Return the metadata that ends a change, once all data has arrived."""
    if metadata.target is None:
        return metadata
    return replace(
        metadata,
        leaving=(),
        table=metadata.target,
        target=None,
        mover="",
    )


def _lost(partitions: list[int], gone: Collection[str]) -> StoreCorruptedError:
    return StoreCorruptedError(
        f"the only copies of {len(partitions)} partitions are on {', '.join(sorted(gone))} and "
        f"would be lost: {first_of(partitions)}.",
        cure="Bring one of these members back with its data. Only if that is impossible, use "
        "--accept-loss: the partitions then begin empty, and jobs that had state in them do "
        "not start.",
    )
