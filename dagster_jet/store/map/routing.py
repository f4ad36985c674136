"""Which members a map's reads and writes go to, also while partitions move. Pure.

A partition has *holders*, whose copies count, and while it moves *receivers*, who are being given
a copy. The rules, for one writer per key at a time (the map's contract):

1. A put or a delete reaches all holders first, then the receivers.
2. Reads ask the holders. A receiver is asked only when a holder does not answer or has a damaged
   copy: it may lack a value, or still have one that was deleted.
3. Whoever copies (``migration.py``) makes a receiver equal to the holders: it reads the receiver,
   then the holders, replaces what differs if the receiver still has what was read, and looks at
   both again, until nothing differs.

Why a receiver ends up with every finished write, whatever the interleaving. Let w be the last
finished write (put or delete) of a key, A the moment it had reached all holders, B > A the moment
it reached the receiver, and C the copier's last change of that key on the receiver. If C < B, w is
what the receiver has. If C > B, the copier looked again after C; it read the holders after
C > B > A and found w there, and stopped only because the receiver had the same. So nothing newer
is overwritten for good and nothing deleted comes back, and what a receiver had from earlier times
does not survive. The copier may die at any point and another may begin anew: the argument uses
nothing but its last look. A write that never finished (its writer died) may be kept or not, per
replica, as everywhere in the map.

Of ``put_newer`` there may be several writers: then w is the newest version that was finished, the
holders have it or a newer one after A, and the same follows. The mover may put an older version
over a newer one on a receiver for a moment; its next look finds the newer one on the holders.

Clients that do not know of the change yet write to the holders only. They are shut out by the
registers: these are moved *before* anything is copied, so what such a client wrote before its
decision (or its ``check``, see ``replicated_map.py``) succeeded is there to be copied, and
afterwards its decisions fail.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.store.map.partition_table import PartitionTable

Members = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicaRouting:
    """Who is read and written.

    Attributes:
        table: the holders of every partition. Members that lost their data are not in it, so that
            while a change is under way a partition may have fewer than are wanted.
        target: while a change is under way, the table that it leads to.
    """

    table: PartitionTable
    target: PartitionTable | None = None

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return self.table.partition_count

    def holders(self, partition: int) -> Members:
        """Return the members whose copies count; the first is read first."""
        return self.table.replicas[partition]

    def receivers(self, partition: int) -> Members:
        """Return the members that are still to be given a copy."""
        if self.target is None:
            return ()
        held = self.table.replicas[partition]
        return tuple(m for m in self.target.replicas[partition] if m not in held)

    def replicas(self, partition: int) -> Members:
        """Return holders and receivers: everybody that a write must reach."""
        return self.holders(partition) + self.receivers(partition)

    def put_rounds(self, partition: int) -> tuple[Members, ...]:
        """Return who takes a new value, one round after the other."""
        return (self.holders(partition), self.receivers(partition))

    def delete_rounds(self, partition: int) -> tuple[Members, ...]:
        """Return who forgets a value, one round after the other."""
        return (self.holders(partition), self.receivers(partition))

    def moving_partitions(self) -> tuple[int, ...]:
        """Return the partitions that somebody still has to be given."""
        return tuple(p for p in range(self.partition_count) if self.receivers(p))

    def missing(self, partition: int) -> int:
        """Return how many replicas fewer than wanted the partition has, all members answering."""
        aim = self.target or self.table
        wanted = 1 + min(aim.backup_count, len(aim.members) - 1)
        return max(0, wanted - len(self.holders(partition)))
