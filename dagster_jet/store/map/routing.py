"""The members that a map's reads and writes go to, also while partitions move. Pure.

A partition has *holders*, whose copies count, and while it moves *receivers*, to which a copy is
being made. The rules, for one writer per key at a time (the map's contract):

1. A put or a delete reaches all holders first, then the receivers.
2. Reads ask the holders. A receiver is asked only when a holder does not answer or has a damaged
   copy: it may lack a value, or still have one that was deleted.
3. The copier (``migration.py``) makes a receiver equal to the holders: it reads the receiver, then
   the holders, replaces each difference if the receiver is still as it was read, and reads both
   again, until nothing differs.

A receiver ends up with every finished write, whatever the interleaving. Proof: let w be the last
finished write (put or delete) of a key, A the time at which it had reached all holders, B > A the
time at which it reached the receiver, and C the copier's last change of that key on the receiver.
If C < B, the receiver has w. If C > B, the copier read both again after C; it read the holders
after C > B > A and found w there, and stopped only because the receiver had the same. So nothing
newer is overwritten for good, nothing deleted comes back, and old copies on the receiver do not
survive. The copier may die at any point and another may start over: the proof uses only its last
read. A write that never finished (its writer died) may be kept or not, per replica, as everywhere
in the map.

``put_newer`` may have several writers: then w is the newest version that was finished, the holders
have it or a newer one after A, and the same follows. The mover may briefly put an older version
over a newer one on a receiver; its next read finds the newer one on the holders.

Clients that have not read the change yet write to the holders only. The registers fence them: they
are moved *before* anything is copied. Data that such a client wrote before its decision (or its
``check``, see ``replicated_map.py``) succeeded is therefore there to be copied, and later decisions
of the client fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.store.map.partition_table import PartitionTable

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRouting:
    """The members that are read and written for each partition.

    Attributes:
        table: the holders of every partition. Members that lost their data are not in it, so a
            partition may have fewer holders than wanted while a change is under way.
        target: the table that a change under way leads to; None between changes.
    """

    table: PartitionTable
    target: PartitionTable | None = None

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return self.table.partition_count

    def holders(self, partition: int) -> Members:
        """Return the members whose copies count, in the order of reading."""
        return self.table.replicas[partition]

    def receivers(self, partition: int) -> Members:
        """Return the members that still have to receive a copy."""
        if self.target is None:
            return ()
        held = self.table.replicas[partition]
        return tuple(m for m in self.target.replicas[partition] if m not in held)

    def replicas(self, partition: int) -> Members:
        """Return holders and receivers: all members that a write must reach."""
        return self.holders(partition) + self.receivers(partition)

    def put_rounds(self, partition: int) -> tuple[Members, ...]:
        """Return the members that take a new value, one round after the other."""
        return (self.holders(partition), self.receivers(partition))

    def delete_rounds(self, partition: int) -> tuple[Members, ...]:
        """Return the members that delete a value, one round after the other."""
        return (self.holders(partition), self.receivers(partition))

    def moving_partitions(self) -> tuple[int, ...]:
        """Return the partitions that a receiver still lacks."""
        return tuple(p for p in range(self.partition_count) if self.receivers(p))

    def missing(self, partition: int) -> int:
        """Return the number of missing replicas of a partition, if all members answer."""
        aim = self.target or self.table
        wanted = 1 + min(aim.backup_count, len(aim.members) - 1)
        return max(0, wanted - len(self.holders(partition)))
