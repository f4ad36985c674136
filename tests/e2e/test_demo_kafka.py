"""The judge of `make demo KAFKA=1`, on a real table and a real topic, with a small dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from demo.oracle import Verdict, check_kafka_outputs
from demo.replay import flights_in_order, write_files
from demo.servers import PARTITIONS, Servers
from pipelines.airport_delays.through_kafka import BADLY_DELAYED, HOURLY, TOPIC
from tests.e2e import test_demo_oracle as files
from tests.integration.connectors.kafka_world import KafkaWorld
from tests.long import long
from tests.servers import wait_until
from tests.servers.kafka import kafka
from tests.servers.postgres import postgres


class Outputs(files.Outputs):
    """Tables and files of a demo job's sinks; the files are those of the demo without Kafka."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.servers = Servers(kafka(), postgres())
        self.database = self.servers.database
        self.database.run(
            f"create table {HOURLY} (origin text, window_start timestamptz, "
            "window_end timestamptz, n bigint, mean double precision, worst double precision)"
        )
        self.database.run(
            f'create table {BADLY_DELAYED} ("at" timestamptz, airline text, carrier text, '
            "flight int, origin text, dest text, delay double precision, temp double precision, "
            "wind_speed double precision, precip double precision, visib double precision)"
        )
        self._send(folder)

    def _send(self, folder: Path) -> None:
        """Sends with the demo's replayer, to a topic of this test's own on the run's broker."""
        world = KafkaWorld(self.servers.broker)
        if TOPIC not in world.admin.list_topics(timeout=30).topics:
            world.create(TOPIC, PARTITIONS)
        paths = write_files(
            flights_in_order(files.DATASET), folder / "staged", files_count=2, bad_lines_count=1
        )
        replayer = self.servers.replayer(paths, folder / "sent", 0)
        replayer.start()
        wait_until(lambda: replayer.finished, within=30)
        self.messages = folder / "messages.json"
        self.servers.write_messages(self.messages)
        self.read = [json.loads(line) for line in self.messages.read_text().splitlines()]

    def write_right(self) -> None:
        super().write_right()
        for row in files.HOURLY:
            self.insert(HOURLY, row)
        self.insert(BADLY_DELAYED, files.BADLY)
        [bad] = [message for message in self.read if not message["line"].endswith("}")]
        out = self.folder / "out" / "bad_rows"
        for path in [*out.glob("*.json"), *(out / "_epochs").glob("*.json")]:
            path.unlink()
        self.json("bad_rows", [{**self.bad, "position": bad["position"], "raw": bad["line"]}])

    def insert(self, table: str, row: dict[str, Any]) -> None:
        places = ", ".join(["%s"] * len(row))
        self.database.run(f"insert into {table} values ({places})", *row.values())

    def check(self) -> Verdict:
        self.servers.write_tables(self.folder / "tables")
        return check_kafka_outputs(
            self.folder / "csv", self.messages, self.folder / "tables", self.folder / "out"
        )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    return Outputs(tmp_path_factory.mktemp("kafka"))


@long  # the judge of the demo without Kafka is in test_demo_oracle.py
def test_what_is_wrong_in_a_table_is_found(outputs: Outputs) -> None:
    assert [(o.name, o.missing) for o in outputs.check().outputs] == [
        ("hourly", 2), ("hourly_files", 2), ("badly_delayed", 1), ("bad_rows", 1),
    ]  # fmt: skip
    outputs.write_right()
    verdict = outputs.check()
    assert verdict.is_exact, verdict
    assert (verdict.flights, verdict.bad_lines) == (4, 1)

    outputs.insert(BADLY_DELAYED, files.BADLY)
    assert outputs.verdict("badly_delayed").duplicates == 1
    outputs.database.run(f"update {HOURLY} set worst = 89 where origin = 'EWR'")
    found = outputs.verdict("hourly")
    assert (found.missing, found.wrong, found.duplicates) == (1, 1, 0)
    assert outputs.verdict("hourly_files").is_exact and not outputs.check().is_exact
