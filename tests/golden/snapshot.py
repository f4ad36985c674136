"""A job's newest snapshot as a file: the record, the manifest, and every chunk and index it names.

LMDB files depend on version and machine; keys and values do not.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, read_record, record_register
from dagster_jet.snapshot.manifest import Manifest, checksum
from dagster_jet.store import MapKey, Store

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class GoldenSnapshot:
    """A store that a version of the library wrote, with the job's input and output up to then."""

    rows: list[list[dict[str, Any]]]
    others: list[list[dict[str, Any]]]
    outputs: dict[str, Counter[tuple[str, ...]]]
    record: str
    manifest: str
    chunks: dict[MapKey, bytes]
    """Chunks and the indexes of their sets."""

    @classmethod
    def read(cls, path: Path) -> GoldenSnapshot:
        fields = json.loads(path.read_text("utf-8"))
        fields["chunks"] = {
            MapKey(int(partition), name): zlib.decompress(base64.b64decode(text))
            for key, text in fields["chunks"].items()
            for partition, name in [key.split(" ", 1)]
        }
        fields["outputs"] = {
            stage: Counter({tuple(row): times for row, times in rows})
            for stage, rows in fields["outputs"].items()
        }
        return cls(**fields)

    def write(self, path: Path) -> None:
        """
        Raises:
            FileExistsError: a golden file is never written twice.
        """
        fields = asdict(replace(self, chunks={}, outputs={}))
        fields["chunks"] = {
            f"{key.partition} {key.name}": base64.b64encode(zlib.compress(data, 9)).decode()
            for key, data in sorted(
                self.chunks.items(), key=lambda item: (item[0].name, item[0].partition)
            )
        }
        fields["outputs"] = {
            stage: [[list(row), times] for row, times in sorted(rows.items())]
            for stage, rows in self.outputs.items()
        }
        with path.open("x", encoding="utf-8") as file:
            file.write(_lines(fields, depth=2) + "\n")

    @property
    def job(self) -> str:
        return str(json.loads(self.record)["job"])

    def put_into(self, store: Store) -> None:
        """Makes a fresh store what the old one was."""
        directory, state = store.map(JOB_DIRECTORY), store.map(f"jobs/{self.job}/state")
        directory.put_all({directory.key(self.job): b""})
        record = json.loads(self.record)
        name = record["snapshots"][0]["manifest_name"]
        state.put_all({**self.chunks, state.key(name): self.manifest.encode()})
        register = store.register(record_register(self.job))
        register.claim(record["execution_id"], "golden").write(self.record.encode())

    def with_record(self, **changes: Any) -> GoldenSnapshot:
        return replace(self, record=json.dumps({**json.loads(self.record), **changes}))

    def with_manifest(self, **changes: Any) -> GoldenSnapshot:
        """Replaces the manifest, and the record that names it."""
        manifest = json.dumps({**json.loads(self.manifest), **changes})
        (ref,) = json.loads(self.record)["snapshots"]
        ref["manifest_checksum"] = checksum(manifest.encode())
        return replace(self, manifest=manifest).with_record(snapshots=[ref])


def _lines(value: Any, depth: int) -> str:
    """JSON that breaks lines down to a depth: one chunk, row or batch per line."""
    if depth == 0 or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return "[\n" + ",\n".join(_lines(part, depth - 1) for part in value) + "\n]"
    parts = (f"{json.dumps(name)}: {_lines(part, depth - 1)}" for name, part in value.items())
    return "{\n" + ",\n".join(parts) + "\n}"


def state_in(store: Store, job: str) -> dict[MapKey, bytes | None]:
    """Everything that the store holds of a job besides its record."""
    state = store.map(f"jobs/{job}/state")
    keys = sorted(state.keys(""), key=lambda key: (key.name, key.partition))
    return dict(zip(keys, state.get_all(keys), strict=True))


def take(store: Store, job: str) -> tuple[str, str, dict[MapKey, bytes]]:
    """Record, manifest and chunks of the newest snapshot, without the time and without what has
    paths of this machine: artifacts, and where the sinks wrote."""
    record = read_record(store, job)
    assert record is not None and record.lease is None and record.failure is None
    (ref,) = record.snapshots
    assert ref.committed, "what its artifacts' commits would need is not taken along"
    state = state_in(store, job)
    data = state[store.map(f"jobs/{job}/state").key(ref.manifest_name)]
    assert data is not None
    read = Manifest.from_bytes(data)
    elsewhere = {name: {**there, "path": f"/golden/{name}"} for name, there in read.sinks.items()}
    read = replace(read, artifacts=(), sinks=elsewhere)
    manifest = read.to_bytes()
    ref = replace(ref, manifest_checksum=checksum(manifest), taken_at_ms=0)
    record = replace(record, snapshots=(ref,), updated_at_ms=0)
    named = {name for sets in read.chunk_sets().values() for name in sets}
    chunks = {
        key: data
        for key, data in state.items()
        if data is not None and key.name.removesuffix("/index") in named
    }
    return record.to_bytes().decode(), manifest.decode(), chunks
