"""Chunks made where they are sealed: each is copied once on its way from a table to a member."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.store import OVERHEAD_BYTES, RoomyPayload

_ROOM = bytes(OVERHEAD_BYTES)


class Shelf:
    """Memory for the chunks of one batch, one behind the other, each with room for its envelope.

    A chunk is an Arrow record-batch message without schema, as `RecordBatch.serialize` makes it.
    """

    def __init__(self, schema: pa.Schema, size: int) -> None:
        self._nothing = pa.RecordBatch.from_pylist([], schema=schema)
        head = schema.serialize().size + pa.ipc.get_record_batch_size(self._nothing)
        self._buffer = pa.allocate_buffer(head + size)
        self._memory = memoryview(self._buffer).cast("B")  # unsigned: OpenSSL takes no other
        self.clear()

    def clear(self) -> None:
        """Begins anew: what was put here is no longer needed."""
        self._sink = pa.FixedSizeBufferWriter(self._buffer)
        self._writer = pa.ipc.new_stream(self._sink, self._nothing.schema)
        # The schema comes with the first batch, and is to be in front of all chunks.
        self._writer.write_batch(self._nothing)

    def has_room(self, rows: pa.RecordBatch) -> bool:
        needed = OVERHEAD_BYTES + pa.ipc.get_record_batch_size(rows)
        return bool(self._sink.tell() + needed <= len(self._memory))

    def put(self, rows: pa.RecordBatch) -> RoomyPayload:
        """The rows as a chunk; there has to be room."""
        begin = self._sink.tell()
        self._sink.write(_ROOM)
        self._writer.write_batch(rows)
        return RoomyPayload(self._memory[begin : self._sink.tell()])
