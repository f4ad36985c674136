"""Reads the state of a stage out of a store's folders, without dagster_jet.

    python read_snapshot.py --job airport_delays --stage hourly_delays /var/jet/a /var/jet/b

It needs lmdb and pyarrow, and opens the folders read-only: jobs may go on. The format is described
in docs/snapshots.md. Values that are encrypted need the store's keys, which this does not take.
"""

from __future__ import annotations

import argparse
import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lmdb
import pyarrow as pa

ENVELOPE = struct.Struct("<2sBBIQ")
PLACE = struct.Struct(">B16sQI")
VERSION = struct.Struct(">Q")


def unseal(sealed: bytes) -> bytes:
    """The value in its envelope. (The last field is a checksum, xxh3_64 of head and value.)"""
    magic, form, _, length, _ = ENVELOPE.unpack_from(sealed)
    value = sealed[ENVELOPE.size :]
    if magic != b"DJ" or len(value) != length:
        raise ValueError("a damaged copy: read another member's")
    if form != 1:
        raise ValueError("the store is encrypted")
    return value


class Member:
    """One folder of the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = lmdb.open(str(folder), readonly=True, max_dbs=4)
        names = (b"values", b"places", b"versioned")
        self.values, self.places, self.versioned = (
            self.environment.open_db(name, create=False) for name in names
        )

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Every key of a map that this folder has, and its value."""
        with self.environment.begin() as transaction:
            for space in (self.values, self.places):
                cursor = transaction.cursor(db=space)
                found = cursor.set_range(prefix)
                while found and cursor.key().startswith(prefix):
                    value = cursor.value()
                    yield cursor.key(), self.in_segment(value) if space is self.places else value
                    found = cursor.next()

    def in_segment(self, place: bytes) -> bytes:
        """A large value, which lies in a file beside LMDB."""
        _, segment, offset, length = PLACE.unpack(place)
        with (self.folder / "segments" / f"{segment.hex()}.values").open("rb") as file:
            file.seek(offset)
            return file.read(length)

    def register(self, name: str) -> tuple[dict[str, Any], bytes] | None:
        """What this folder knows of a register: what it says of itself, and the value."""
        with self.environment.begin() as transaction:
            stored = transaction.get(b"register/" + name.encode(), db=self.versioned)
        if stored is None:
            return None
        head, _, value = unseal(stored[VERSION.size :]).partition(b"\n")
        known = json.loads(head)
        return (known, value) if known["has_value"] else None


class SnapshotReader:
    """Reads snapshots of one namespace.

    Args:
        folders: the members; of a store with backups not all are needed.
        namespace: as in ``Jet(namespace=...)``.
    """

    def __init__(self, folders: list[Path], namespace: str = "default") -> None:
        self.members = [Member(folder) for folder in folders]
        self.namespace = namespace

    def register(self, name: str) -> Any:
        """The newest value that one of the members knows, as JSON."""
        place = f"{quote(self.namespace, safe='')}/{quote(name, safe='')}"
        known = [one for member in self.members if (one := member.register(place)) is not None]
        if not known:
            raise SystemExit(f"there is no {name!r} in these folders")
        _, value = max(known, key=lambda one: (one[0]["accepted"][0], one[0]["sequence"]))
        return json.loads(value)

    def map(self, name: str) -> dict[tuple[int, str], bytes]:
        """A map's values by partition and key."""
        prefix = f"map/{quote(self.namespace, safe='')}/{quote(name, safe='')}/".encode()
        found = {}
        for member in self.members:
            for key, sealed in member.items(prefix):
                partition, _, name = key[len(prefix) :].decode().partition("/")
                found[int(partition), name] = unseal(sealed)
        return found

    def snapshot(self, job: str, wanted: str | None) -> tuple[dict[str, Any], dict[Any, bytes]]:
        """A snapshot's manifest, and the map that has its chunks.

        Args:
            job: the job's name.
            wanted: the id of a retained snapshot, the name of an exported one, None: the newest.
        """
        if wanted is not None and not wanted.isdigit():
            exports = {one["name"]: one for one in self.register("exports")["exports"]}
            export = exports[wanted]
            ref, values = export["ref"], self.map(f"exports/{wanted}/{export['attempt']}")
        else:
            refs = self.register(f"jobs/{job}/record")["snapshots"]
            ref = next(r for r in refs if wanted is None or r["snapshot_id"] == int(wanted))
            values = self.map(f"jobs/{job}/state")
        by_name = {name: value for (_, name), value in values.items()}
        return json.loads(by_name[ref["manifest_name"]]), values

    def state(self, job: str, stage: str, wanted: str | None = None) -> pa.Table | None:
        """The rows of a stage as they were saved, of all its shards."""
        manifest, values = self.snapshot(job, wanted)
        tables = [t for chain in manifest["shards"][stage] for t in chunks(chain, values)]
        return pa.concat_tables(tables, promote_options="default") if tables else None


def chunks(chain: list[dict[str, Any]], values: dict[Any, bytes]) -> Iterator[pa.Table]:
    """The chunks of a shard that count: of each partition the newest that is whole, and the newer
    ones, which say what has changed since."""
    by_name = {name: value for (_, name), value in values.items()}
    whole: set[int] = set()
    for chunk_set in reversed(chain):
        index = json.loads(by_name[f"{chunk_set['name']}/index"])
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(index["schema"])))
        counted = [one for one in index["chunks"] if one[0] not in whole]
        for partition, rows, _checksum, is_whole in counted:
            if is_whole:
                whole.add(partition)
            if rows:
                body = pa.py_buffer(values[partition, chunk_set["name"]])
                yield pa.Table.from_batches([pa.ipc.read_record_batch(body, schema)])


def main() -> None:
    """Prints the rows as JSON, one per line, or writes them as an Arrow file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--job", required=True)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--snapshot", help="id, or name of an export; default: the newest")
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--out", help="an Arrow file to write")
    given = parser.parse_args()
    reader = SnapshotReader(given.folders, given.namespace)
    table = reader.state(given.job, given.stage, given.snapshot)
    if table is None:
        return
    if given.out:
        with pa.OSFile(given.out, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    else:
        for row in table.to_pylist():
            print(json.dumps(row, default=str))


if __name__ == "__main__":
    main()
