"""Seeded messages: numbered, with a key, event time out of order by up to 100 ms, and a value.

Message number `n` goes to partition `n % PARTITIONS`, so that each partition has all of time.
Behind the last one every partition gets one of a day later, which closes all windows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

PARTITIONS, KEYS = 4, 1_000
SCHEMA = "n long, k string, ts long, v long"
T0_MS, DAY_MS = 1_700_000_000_000, 86_400_000
DISORDER_MS, LAG_MS = 100, 200
WINDOW_MS = 1_000
CLOSING_KEY = "key-close"
_SEED, _CHUNK = 20_261_124, 20_000
_TURN_S = 0.005


@dataclass(frozen=True)
class Messages:
    """`count` messages, of which `per_second` are in a second of event time."""

    count: int
    per_second: int

    def chunks(self) -> Iterator[pa.Table]:
        """n, k, ts, v: the same at every call."""
        draw = np.random.default_rng(_SEED)
        for first in range(0, self.count, _CHUNK):
            size = min(_CHUNK, self.count - first)
            numbers = np.arange(first, first + size)
            times = T0_MS + numbers * 1000 // self.per_second
            times -= draw.integers(0, DISORDER_MS + 1, size)
            keys = draw.integers(0, KEYS, size)
            yield pa.table(
                {
                    "n": numbers,
                    "k": [f"key-{key:04d}" for key in keys.tolist()],
                    "ts": times,
                    "v": draw.integers(100, 1000, size),
                }
            )

    def texts(self) -> Iterator[str]:
        for chunk in self.chunks():
            columns = (chunk[name].to_pylist() for name in ("n", "k", "ts", "v"))
            for n, k, ts, v in zip(*columns, strict=True):
                yield f'{{"n":{n},"k":"{k}","ts":{ts},"v":{v}}}'

    @property
    def closing(self) -> str:
        end = T0_MS + self.count * 1000 // self.per_second + DAY_MS
        return f'{{"n":-1,"k":"{CLOSING_KEY}","ts":{end},"v":0}}'

    @property
    def sent(self) -> int:
        """Number of messages in the topic, the closing ones included."""
        return self.count + PARTITIONS

    def fill(self, servers: str, topic: str) -> None:
        """Sends all of them, as fast as it goes."""
        sender = _Sender(servers, topic)
        for number, text in enumerate(self.texts()):
            sender.send(text, number % PARTITIONS)
        sender.close(self.closing)


class Replay:
    """Sends messages by their schedule, message n at `started_at + n / per_second`, on a thread.

    One that comes late, because the thread was not given a core, does not move the schedule.
    """

    def __init__(self, messages: Messages, servers: str, topic: str) -> None:
        self._messages, self._sender = messages, _Sender(servers, topic)
        self._stop = threading.Event()
        self.late_s = 0.0
        """The most that a message was late; the engine's latency has it."""
        self._texts = list(messages.texts())
        self.started_at = time.time()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        sent, count = 0, len(self._texts)
        while sent < count and not self._stop.is_set():
            passed = time.time() - self.started_at
            due = min(count, int(passed * self._messages.per_second))
            if due > sent:
                self.late_s = max(self.late_s, passed - sent / self._messages.per_second)
            for number in range(sent, due):
                self._sender.send(self._texts[number], number % PARTITIONS)
            self._sender.producer.poll(0)
            sent = due
            time.sleep(_TURN_S)
        self._sender.close(self._messages.closing)


class _Sender:
    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        settings = {"bootstrap.servers": servers, "linger.ms": 5, "enable.idempotence": True}
        self.producer = Producer({**settings, "queue.buffering.max.messages": 500_000})

    def send(self, text: str, partition: int) -> None:
        while True:
            try:
                self.producer.produce(self._topic, text, partition=partition)
            except BufferError:
                self.producer.poll(0.05)
            else:
                return

    def close(self, closing: str) -> None:
        for partition in range(PARTITIONS):
            self.send(closing, partition)
        left = self.producer.flush(60)
        if left:
            raise TimeoutError(f"the broker did not take {left} messages")
